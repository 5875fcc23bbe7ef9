"""SimpleImputer fills null and NaN as scikit-learn's does, also in text, and keeps one type per column."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.impute import SimpleImputer as Reference

from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessor import Preprocessor
from paceline.data.preprocessors import SimpleImputer
from tests.data.preprocessing import column, dataset, skewed


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("strategy", ["mean", "most_frequent"])
def test_fractions_as_in_scikit_learn(strategy: str, dtype: str) -> None:
    numbers = np.round(skewed(), 0).astype(dtype)
    result = column(SimpleImputer(["x"], strategy).fit_transform(dataset(x=numbers)), "x")
    expected = Reference(strategy=strategy).fit_transform(numbers[:, None])[:, 0]
    assert result.dtype == dtype
    np.testing.assert_allclose(result, expected, rtol=1e-12 if dtype == "float64" else 1e-6)


def test_the_most_frequent_word() -> None:
    words = np.array(["b", None, "a", "a", "b", "c", None], object)
    fitted = SimpleImputer(["x"], "most_frequent").fit(dataset(block_rows=2, x=pa.array(words)))
    expected = Reference(missing_values=None, strategy="most_frequent").fit_transform(words[:, None])[:, 0]
    assert fitted.stats_ == {"most_frequent(x)": "a"}
    assert fitted.transform(dataset(x=pa.array(words))).to_arrow().column("x").to_pylist() == expected.tolist()


def test_whole_numbers_have_a_mean_with_a_fraction_in_every_block() -> None:
    ds = dataset(block_rows=2, x=pa.array([1, 2, None, 4, 5, 6]))
    filled = SimpleImputer(["x"]).fit_transform(ds).to_arrow().column("x")
    assert filled.type == pa.float64()
    assert filled.to_pylist() == [1, 2, 3.6, 4, 5, 6]


@pytest.mark.parametrize(
    ("values", "fill", "kind", "expected"),
    [
        ([1, None], 0, pa.int64(), [1, 0]),
        ([1, None], 0.5, pa.float64(), [1.0, 0.5]),
        ([1.5, None, math.nan], 0, pa.float64(), [1.5, 0.0, 0.0]),
        (["a", None], "none", pa.string(), ["a", "none"]),
        ([True, None], False, pa.bool_(), [True, False]),
        (pa.nulls(2), "b", pa.string(), ["b", "b"]),
    ],
)
def test_a_constant(values: Any, fill: Any, kind: pa.DataType, expected: list[Any]) -> None:
    imputer = SimpleImputer(["x"], "constant", fill_value=fill)
    assert imputer.fit_status() is Preprocessor.FitStatus.NOT_FITTABLE
    filled = imputer.transform(dataset(x=values)).to_arrow().column("x")
    assert (filled.type, filled.to_pylist()) == (kind, expected)


def test_categories_stay_categories() -> None:
    values = pa.array(["b", None, "b", "a"]).dictionary_encode()
    filled = SimpleImputer(["x"], "most_frequent").fit_transform(dataset(block_rows=3, x=values)).to_arrow()
    assert pa.types.is_dictionary(filled.column("x").type)
    assert filled.column("x").to_pylist() == ["b", "b", "b", "a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": "median"}, "strategy.*'median'.*'mean'"),
        ({"strategy": "constant"}, "fill_value.*None"),
        ({"fill_value": 3}, "fill_value.*strategy='constant'"),
    ],
)
def test_settings_that_cannot_work(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimpleImputer(["x"], **arguments)


@pytest.mark.parametrize(
    ("strategy", "values", "message"),
    [
        ("mean", ["a"], "'x'.*string.*numbers"),
        ("mean", pa.nulls(2), "'x'.*no values.*mean"),
        ("most_frequent", pa.array([None], pa.string()), "'x'.*no values.*most frequent"),
        ("most_frequent", [[1]], "'x'.*list"),
    ],
)
def test_columns_without_an_answer(strategy: str, values: Any, message: str) -> None:
    with pytest.raises(DataError, match=rf"SimpleImputer.*{message}"):
        SimpleImputer(["x"], strategy).fit(dataset(x=values))


def test_a_constant_that_does_not_fit_the_column() -> None:
    with pytest.raises(DataError, match=r"SimpleImputer.*'x'.*int64.*'none'"):
        SimpleImputer(["x"], "constant", fill_value="none").transform_batch({"x": np.array([1, 2])})
