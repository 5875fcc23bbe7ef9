"""Normalizer scales rows as scikit-learn's does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.preprocessing import Normalizer as Reference

from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessor import Preprocessor
from paceline.data.preprocessors import Normalizer
from tests.data.preprocessing import column, dataset, skewed


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_rows_as_in_scikit_learn(norm: str) -> None:
    x, y = skewed(100, missing=False), np.arange(100) - 50
    x[::10] = 0
    y[::20] = 0
    normalizer = Normalizer(["x", "y"], norm)
    assert normalizer.fit_status() is Preprocessor.FitStatus.NOT_FITTABLE
    ds = normalizer.transform(dataset(x=x, y=y, z=y))
    expected = Reference(norm).fit_transform(np.column_stack([x, y]))
    np.testing.assert_allclose(np.column_stack([column(ds, "x"), column(ds, "y")]), expected, rtol=1e-13)
    assert column(ds, "z").tolist() == y.tolist()


def test_columns_keep_their_precision() -> None:
    batch = Normalizer(["x", "y"]).transform_batch({"x": np.array([3], np.float32), "y": np.array([4])})
    assert (batch["x"].dtype, batch["y"].dtype) == (np.float32, np.float64)
    assert (batch["x"][0], batch["y"][0]) == (np.float32(0.6), 0.8)


def test_a_row_with_a_missing_value_has_no_norm() -> None:
    ds = dataset(x=pa.array([3, None, 0]), y=pa.array([4.0, 1.0, 2.0]))
    result = Normalizer(["x", "y"]).transform(ds).to_arrow()
    assert result.column("x").to_pylist() == [0.6, None, 0.0]
    assert result.column("y").to_pylist() == [0.8, None, 1.0]


@pytest.mark.parametrize("norm", ["l3", None, 2])
def test_a_norm_that_is_not_known(norm: Any) -> None:
    with pytest.raises(ConfigError, match=r"Normalizer.*norm"):
        Normalizer(["x"], norm)


def test_columns_that_are_not_numbers() -> None:
    with pytest.raises(DataError, match=r"Normalizer.*'x'.*string"):
        Normalizer(["x"]).transform(dataset(x=["a"])).to_arrow()
    with pytest.raises(DataError, match=r"Normalizer.*'y'"):
        Normalizer(["x", "y"]).transform_batch({"x": np.array([1.0])})
