"""Columns as jax.Arrays in one process: types, and what JAX cannot hold."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataError


def table(**columns: Any) -> data.Dataset:
    return data.from_arrow(pa.table(columns))


def test_columns_become_arrays_of_jaxs_types() -> None:
    rows = table(
        whole=pa.array([1, 2, None, 4]),
        large=pa.array([1.0, 2.0, 3.0, 4.0], pa.float64()),
        count=pa.array([1, 2, 3, 4], pa.int64()),
        flag=pa.array([True, False, True, True]),
        vector=pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32())),
    )
    first, last = rows.iter_jax_batches(batch_size=3, dtypes={"large": jnp.bfloat16})
    assert {name: (str(array.dtype), array.shape) for name, array in first.items()} == {
        "whole": ("float32", (3,)),
        "large": ("bfloat16", (3,)),
        "count": ("int32", (3,)),
        "flag": ("bool", (3,)),
        "vector": ("float32", (3, 2)),
    }
    assert all(isinstance(array, jax.Array) for array in first.values())
    assert np.isnan(first["whole"][2])
    assert last["count"].tolist() == [4]


def test_numbers_that_jax_would_change_are_told() -> None:
    with pytest.raises(DataError, match=r"'n' \(int64\) has numbers that int32 cannot hold.*jax_enable_x64"):
        list(table(n=[1, 2**40]).iter_jax_batches())
    with jax.enable_x64(True):
        (batch,) = table(n=[1, 2**40]).iter_jax_batches()
        assert batch["n"].tolist() == [1, 2**40]
    with pytest.raises(DataError, match="nulls or NaN"):
        list(table(n=[1, None]).iter_jax_batches(dtypes=jnp.int32))
    with pytest.raises(DataError, match=r"'t' .* does not fit"):
        list(table(t=["a", "b"]).iter_jax_batches())


def test_shardings_by_column() -> None:
    device = jax.devices()[0]
    single = jax.sharding.SingleDeviceSharding(device)
    rows = table(a=[1.0, 2.0], b=[3.0, 4.0])
    (batch,) = rows.iter_jax_batches(sharding={"a": single, "default": None})
    assert batch["a"].sharding == single
    assert isinstance(batch["b"].sharding, jax.sharding.NamedSharding)
    with pytest.raises(ConfigError, match="no entry for column 'b'"):
        list(rows.iter_jax_batches(sharding={"a": single}))
    with pytest.raises(ConfigError, match=r"jax\.sharding\.Sharding"):
        list(rows.iter_jax_batches(sharding="data"))
