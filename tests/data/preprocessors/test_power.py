"""PowerTransformer calculates what scikit-learn's does with the same power."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.preprocessing import PowerTransformer as Reference

from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessor import Preprocessor
from paceline.data.preprocessors import PowerTransformer
from tests.data.preprocessing import column, dataset, skewed


def expected(numbers: np.ndarray, power: float, method: str) -> np.ndarray:
    reference = Reference(method=method, standardize=False).fit(numbers[:, None])
    reference.lambdas_ = np.array([power])
    transformed: np.ndarray = reference.transform(numbers[:, None])[:, 0]
    return transformed


@pytest.mark.parametrize("power", [-2.0, 0, 1e-9, 0.5, 1, 2, 3.5])
@pytest.mark.parametrize("method", ["yeo-johnson", "box-cox"])
def test_as_in_scikit_learn(power: float, method: str) -> None:
    numbers = skewed() if method == "yeo-johnson" else np.abs(skewed()) + 0.01
    transformer = PowerTransformer(["x"], power, method)
    assert transformer.fit_status() is Preprocessor.FitStatus.NOT_FITTABLE
    result = column(transformer.transform(dataset(x=numbers)), "x")
    # For tiny powers the plain formula cancels out; ours does not.
    np.testing.assert_allclose(result, expected(numbers, power, method), rtol=1e-6 if power == 1e-9 else 1e-11)


def test_whole_numbers_nulls_and_precision() -> None:
    ds = dataset(x=pa.array([3, None, 0]), y=pa.array([3, 0, None], pa.float32()))
    result = PowerTransformer(["x", "y"], 2).transform(ds).to_arrow()
    assert result.schema.types == [pa.float64(), pa.float32()]
    assert result.column("x").to_pylist() == [pytest.approx(7.5), None, 0]
    assert result.column("y").to_pylist() == [pytest.approx(7.5), 0, None]


def test_box_cox_refuses_what_it_is_not_defined_for() -> None:
    with pytest.raises(DataError, match=r"PowerTransformer.*'x'.*-1\.0.*Box-Cox.*yeo-johnson"):
        PowerTransformer(["x"], 0.5, "box-cox").transform_batch({"x": np.array([1, -1])})
    with_null = pa.table({"x": pa.array([1.0, None])})  # a null is not a number that is not above 0
    assert PowerTransformer(["x"], 0.5, "box-cox").transform_batch(with_null).column("x").to_pylist() == [0, None]


@pytest.mark.parametrize("arguments", [("x",), (None,), (float("nan"),), (1, "yeo")])
def test_settings_that_cannot_work(arguments: Any) -> None:
    with pytest.raises(ConfigError, match=r"PowerTransformer.*(power|method)"):
        PowerTransformer(["x"], *arguments)
