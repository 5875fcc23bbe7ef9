"""Discretizers give the bins of pandas.cut, and of scikit-learn where it closes intervals on the same side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.preprocessing import KBinsDiscretizer

from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessor import Preprocessor
from paceline.data.preprocessors import CustomKBinsDiscretizer, UniformKBinsDiscretizer
from tests.data.preprocessing import dataset, skewed

EDGES = [-1.0, 0.0, 2.0, 2.5, 30.0]


def bins_of(preprocessor: Preprocessor, values: Any) -> list[Any]:
    return preprocessor.transform(dataset(x=values)).to_arrow().column("x").to_pylist()  # type: ignore[no-any-return]


def cut(values: Any, bins: Any, **options: Any) -> list[Any]:
    found = pd.cut(np.asarray(values, float), bins, labels=False, **options)
    return [None if np.isnan(number) else int(number) for number in found]


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("include_lowest", [True, False])
def test_given_edges(right: bool, include_lowest: bool) -> None:
    values = np.concatenate([skewed(), EDGES, [np.inf, -np.inf]])
    discretizer = CustomKBinsDiscretizer(["x"], EDGES, right=right, include_lowest=include_lowest)
    assert discretizer.fit_status() is Preprocessor.FitStatus.NOT_FITTABLE
    assert bins_of(discretizer, values) == cut(values, EDGES, right=right, include_lowest=include_lowest)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("values", [skewed(), np.arange(11), np.full(5, 3.0), np.zeros(4), skewed(dtype=np.float32)])
def test_bins_of_equal_width(values: np.ndarray, right: bool) -> None:
    discretizer = UniformKBinsDiscretizer(["x"], 5, right=right).fit(dataset(x=values))
    assert bins_of(discretizer, values) == cut(values.astype(np.float64), 5, right=right)


def test_bins_of_equal_width_as_in_scikit_learn() -> None:
    values = skewed(missing=False)
    there = KBinsDiscretizer(8, encode="ordinal", strategy="uniform", subsample=None).fit_transform(values[:, None])
    discretizer = UniformKBinsDiscretizer(["x"], 8, right=False).fit(dataset(x=values))
    assert bins_of(discretizer, values) == there[:, 0].tolist()


def test_other_numbers_than_those_it_was_fitted_on() -> None:
    discretizer = UniformKBinsDiscretizer(["x"], 2).fit(dataset(x=[0.0, 10.0]))
    assert list(discretizer.stats_["x"]) == [-0.01, 5, 10]
    assert bins_of(discretizer, pa.array([-1, 0, 5, 6, 10, 11, None])) == [None, 0, 0, 1, 1, None, None]


def test_each_column_has_its_own_bins() -> None:
    ds = dataset(x=[0, 5, 10], y=[0, 5, 10])
    found = CustomKBinsDiscretizer(["x", "y"], {"x": [-1, 20], "y": [-1, 4, 20]}).transform(ds).to_arrow()
    assert (found.column("x").to_pylist(), found.column("y").to_pylist()) == ([0, 0, 0], [0, 1, 1])
    found = UniformKBinsDiscretizer(["x", "y"], {"x": 1, "y": 2}).fit_transform(ds).to_arrow()
    assert (found.column("x").to_pylist(), found.column("y").to_pylist()) == ([0, 0, 0], [0, 0, 1])


def test_another_integer_type() -> None:
    discretizer = CustomKBinsDiscretizer(["x"], [0, 1, 2], dtypes={"x": np.uint8})
    found = discretizer.transform(dataset(x=[0.5, 9.0, 1.5])).to_arrow().column("x")
    assert (found.type, found.to_pylist()) == (pa.uint8(), [0, None, 1])


def test_bins_with_names() -> None:
    names = pd.CategoricalDtype(["low", "high"], ordered=True)
    frame = pd.DataFrame({"x": [5.0, 1.0, 99.0]})
    found = CustomKBinsDiscretizer(["x"], [0, 2, 10], dtypes={"x": names}).transform_batch(frame)["x"]
    assert found.dtype == names
    assert found.tolist()[:2] == ["high", "low"]
    assert pd.isna(found[2])


def test_equal_edges() -> None:
    with pytest.raises(ConfigError, match=r"\[0\.0, 1\.0, 1\.0\].*duplicates='drop'"):
        CustomKBinsDiscretizer(["x"], [0, 1, 1])
    assert bins_of(CustomKBinsDiscretizer(["x"], [0, 1, 1, 2], duplicates="drop"), [0.5, 1.5]) == [0, 1]


@pytest.mark.parametrize(
    ("bins", "settings", "message"),
    [
        ([3], {}, "two or more.*rising"),
        ([3, 1], {}, "rising"),
        (["a", "b"], {}, "rising"),
        (5, {}, "bins.*'x'.*5"),
        ({"y": [1, 2]}, {}, "bins.*'x'"),
        (EDGES, {"duplicates": "keep"}, "duplicates.*'keep'"),
        (EDGES, {"right": 1}, "right.*1"),
        (EDGES, {"dtypes": {"y": np.int8}}, "dtypes.*'y'.*columns"),
        (EDGES, {"dtypes": {"x": np.float32}}, "integer type"),
        (EDGES, {"dtypes": {"x": "nonsense"}}, "integer type"),
        (EDGES, {"dtypes": {"x": pd.CategoricalDtype(["a"])}}, "1 categories.*'x'.*4 bins"),
    ],
)
def test_settings_that_cannot_work(bins: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"CustomKBinsDiscretizer.*{message}"):
        CustomKBinsDiscretizer(["x"], bins, **settings)


@pytest.mark.parametrize("bins", [0, 2.5, "3", {"x": -1}, [1, 2]])
def test_a_number_of_bins_that_cannot_be(bins: Any) -> None:
    with pytest.raises(ConfigError, match=r"UniformKBinsDiscretizer.*bins.*'x'"):
        UniformKBinsDiscretizer(["x"], bins)


def test_no_bins_without_values_or_with_infinite_ones() -> None:
    with pytest.raises(DataError, match=r"UniformKBinsDiscretizer.*'x'.*no values"):
        UniformKBinsDiscretizer(["x"], 3).fit(dataset(x=pa.array([None], pa.float64())))
    with pytest.raises(DataError, match=r"UniformKBinsDiscretizer.*infinite"):
        UniformKBinsDiscretizer(["x"], 3).fit(dataset(x=[1.0, np.inf]))
