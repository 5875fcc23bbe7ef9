"""Scalers give what scikit-learn's give, for every type of number and with missing values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn import preprocessing as reference

from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessor import Preprocessor
from paceline.data.preprocessors import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from tests.data.preprocessing import column, dataset, skewed

PAIRS: list[tuple[Any, Any]] = [
    (StandardScaler, reference.StandardScaler),
    (MinMaxScaler, reference.MinMaxScaler),
    (MaxAbsScaler, reference.MaxAbsScaler),
    (RobustScaler, reference.RobustScaler),
]
SCALERS = [scaler for scaler, _ in PAIRS]


@pytest.mark.parametrize(("scaler", "expected"), PAIRS)
@pytest.mark.parametrize("missing", [False, True])
def test_fractions_as_in_scikit_learn(scaler: Any, expected: Any, missing: bool) -> None:
    numbers, others = skewed(missing=missing), skewed(30) * 3
    train, test = dataset(x=numbers, kept=np.arange(500)), dataset(x=others, kept=np.arange(30))
    fitted = scaler(["x"]).fit(train)
    there = expected().fit(numbers[:, None])
    np.testing.assert_allclose(
        column(fitted.transform(train), "x"), there.transform(numbers[:, None])[:, 0], rtol=1e-12
    )
    np.testing.assert_allclose(column(fitted.transform(test), "x"), there.transform(others[:, None])[:, 0], rtol=1e-12)
    assert column(fitted.transform(test), "kept").tolist() == list(range(30))


@pytest.mark.parametrize(("scaler", "expected"), PAIRS)
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_other_types_of_numbers(scaler: Any, expected: Any, dtype: str) -> None:
    numbers = np.random.default_rng(5).integers(0, 2 if dtype == "bool" else 200, 100).astype(dtype)
    result = column(scaler(["x"]).fit_transform(dataset(x=numbers)), "x")
    assert result.dtype == ("float32" if dtype == "float32" else "float64")
    there = expected().fit_transform(numbers.astype(result.dtype)[:, None])[:, 0]
    np.testing.assert_allclose(result, there, rtol=1e-12 if dtype != "float32" else 1e-5, atol=1e-6)


@pytest.mark.parametrize(("scaler", "expected"), PAIRS)
@pytest.mark.parametrize("value", [0.0, 0.1, -7.0, 1e9 + 0.1])
def test_a_column_of_one_value(scaler: Any, expected: Any, value: float) -> None:
    numbers = np.full(50, value)
    result = column(scaler(["x"]).fit_transform(dataset(x=numbers)), "x")
    np.testing.assert_allclose(result, expected().fit_transform(numbers[:, None])[:, 0], atol=1e-6)


@pytest.mark.parametrize("scaler", SCALERS)
def test_nulls_stay_null_and_are_not_learnt_from(scaler: Any) -> None:
    with_nulls = pa.array([1, None, 3, None, 8])
    fitted = scaler(["x"]).fit(dataset(block_rows=2, x=with_nulls))
    assert fitted.stats_ == scaler(["x"]).fit(dataset(x=with_nulls.drop_null())).stats_
    result = fitted.transform(dataset(x=with_nulls)).to_arrow().column("x")
    assert result.type == pa.float64()
    assert [value is None for value in result.to_pylist()] == [False, True, False, True, False]


def test_what_was_learnt_has_the_names_users_know() -> None:
    ds = dataset(x=[1, 2, 3, 6], y=[-8.0, 4.0, 0.0, 0.0])
    assert StandardScaler(["x"]).fit(ds).stats_ == {"mean(x)": 3.0, "std(x)": math.sqrt(3.5)}
    assert MinMaxScaler(["x", "y"]).fit(ds).stats_ == {"min(x)": 1, "max(x)": 6, "min(y)": -8.0, "max(y)": 4.0}
    assert MaxAbsScaler(["y"]).fit(ds).stats_ == {"abs_max(y)": 8.0}
    learnt = RobustScaler(["x"]).fit(ds).stats_
    assert learnt == {"low_quantile(x)": 1.75, "median(x)": 2.5, "high_quantile(x)": 3.75}


def test_other_quantiles() -> None:
    numbers = skewed()
    result = column(RobustScaler(["x"], (0.1, 0.8)).fit_transform(dataset(x=numbers)), "x")
    there = reference.RobustScaler(quantile_range=(10, 80)).fit_transform(numbers[:, None])[:, 0]
    np.testing.assert_allclose(result, there, rtol=1e-12)


@pytest.mark.parametrize("quantiles", [(0.75, 0.25), (25, 75), (0.5,), "abc", (None, 1)])
def test_quantiles_that_cannot_be(quantiles: Any) -> None:
    with pytest.raises(ConfigError, match="quantile_range"):
        RobustScaler(["x"], quantiles)


@pytest.mark.parametrize("scaler", SCALERS)
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"y": [1.0]}, r"'x'.*\['y'\]"),
        ({"x": ["a", "b"]}, "'x'.*string.*numbers"),
        ({"x": pa.array([None, None], pa.float64())}, "'x'.*no values"),
        ({"x": pa.array([], pa.float64())}, "'x'.*no values"),
        ({"x": [1.0, math.inf, 2.0] * 20}, "'x'.*infinite"),
    ],
)
def test_columns_that_cannot_be_scaled_are_named_at_fit(scaler: Any, columns: dict[str, Any], message: str) -> None:
    if scaler is RobustScaler and "infinite" in message:
        columns = {"x": [math.inf] * 3}
    with pytest.raises(DataError, match=rf"{scaler.__name__}.*{message}"):
        scaler(["x"]).fit(dataset(**columns))


@pytest.mark.parametrize("scaler", SCALERS)
def test_columns_that_are_missing_later_are_named_with_the_place(scaler: Any) -> None:
    fitted = scaler(["x"]).fit(dataset(x=[1.0, 2.0]))
    with pytest.raises(DataError, match=rf"{scaler.__name__}.*'x'"):
        fitted.transform(dataset(y=[1.0])).to_arrow()
    with pytest.raises(DataError, match=rf"{scaler.__name__}.*'x'.*string"):
        fitted.transform_batch({"x": np.array(["a"])})


@pytest.mark.parametrize("columns", ["x", [], ["x", "x"], [1], None])
def test_columns_must_be_a_list_of_names(columns: Any) -> None:
    with pytest.raises(ConfigError, match=r"StandardScaler.*columns"):
        StandardScaler(columns)


def test_a_scaler_says_what_it_is() -> None:
    scaler: Preprocessor = StandardScaler(["a"])
    assert repr(scaler) == "StandardScaler(columns=['a'])"
    assert (
        repr(scaler.fit(dataset(a=[1.0, 1.0])))
        == "StandardScaler(columns=['a'], stats={'mean(a)': 1.0, 'std(a)': 0.0})"
    )
    assert repr(RobustScaler(["a"], (0, 1))) == "RobustScaler(columns=['a'], quantile_range=(0.0, 1.0))"
