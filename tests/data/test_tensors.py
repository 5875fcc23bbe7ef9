"""Tensor columns: to Arrow and back, through files, slices and joins."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.data.tensors import RaggedTensorType, as_ragged, is_tensor, ragged_array, tensor_array, tensor_to_numpy

CUBE = np.arange(24).reshape(4, 2, 3)


@pytest.mark.parametrize(
    "values",
    [
        CUBE,
        CUBE.astype(np.float16),
        CUBE % 2 == 0,
        CUBE.astype("datetime64[us]"),
        CUBE[::2],
        CUBE[:, ::-1],
        np.moveaxis(CUBE, 1, 2),
        np.zeros((0, 2, 3)),
        np.zeros((3, 0)),
    ],
    ids=["int", "half", "bool", "time", "strided", "reversed", "transposed", "no rows", "no elements"],
)
def test_arrays_of_one_shape_come_back_as_they_were(values: np.ndarray[Any, Any]) -> None:
    column = tensor_array(values)
    assert is_tensor(column.type)
    assert len(column) == len(values)
    back = tensor_to_numpy(column, copy=False)
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)


def test_contiguous_arrays_are_not_copied() -> None:
    assert np.shares_memory(tensor_to_numpy(tensor_array(CUBE), copy=False), CUBE)


def test_a_copy_is_writable_and_leaves_the_column_alone() -> None:
    column = tensor_array(CUBE.copy())
    mine = tensor_to_numpy(column, copy=True)
    mine[:] = -1
    np.testing.assert_array_equal(tensor_to_numpy(column, copy=False), CUBE)


def test_a_slice_of_a_column_shows_its_own_rows() -> None:
    np.testing.assert_array_equal(tensor_to_numpy(tensor_array(CUBE)[1:3], copy=False), CUBE[1:3])


def test_axes_that_another_tool_stored_in_another_order_are_put_right() -> None:
    values = np.moveaxis(np.arange(24).reshape(4, 3, 2), 2, 1)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    np.testing.assert_array_equal(tensor_to_numpy(column, copy=False), values)


def test_null_rows_of_numbers_are_nan_and_of_booleans_none() -> None:
    numbers = tensor_array(np.ones((3, 2), dtype=np.int32)).take(pa.array([0, None, 2]))
    back = tensor_to_numpy(numbers, copy=False)
    assert np.isnan(back[1]).all()
    assert (back[[0, 2]] == 1).all()
    flags = tensor_to_numpy(tensor_array(np.ones((2, 2), dtype=bool)).take(pa.array([0, None])), copy=False)
    assert flags[1] is None
    assert flags[0].all()


def test_ragged_arrays_keep_every_shape() -> None:
    cells = [np.ones((2, 3)), None, np.zeros(1), np.array(5.0), np.zeros((0, 4))]
    for column, expected in ((ragged_array(cells), cells), (ragged_array(cells)[1:4], cells[1:4])):
        back = tensor_to_numpy(column, copy=False)
        assert len(back) == len(expected)
        for cell, wanted in zip(back, expected, strict=True):
            if wanted is None:
                assert cell is None
            else:
                assert cell.shape == wanted.shape
                np.testing.assert_array_equal(cell, wanted)


def test_ragged_cells_of_one_shape_stay_cells() -> None:
    back = tensor_to_numpy(ragged_array([np.ones(2), np.ones(2)]), copy=True)
    assert back.shape == (2,)
    back[0][:] = 7  # a copy is writable
    assert back[1].tolist() == [1.0, 1.0]


def test_tensors_of_one_shape_become_ragged_ones_with_their_nulls() -> None:
    column = tensor_array(CUBE).take(pa.array([0, None, 2]))
    ragged = as_ragged(column)
    assert isinstance(ragged.type, RaggedTensorType)
    back = tensor_to_numpy(ragged, copy=False)
    assert back[1] is None
    np.testing.assert_array_equal(back[2], CUBE[2])


def test_both_kinds_survive_parquet_pickle_and_joining(tmp_path: Path) -> None:
    ragged = ragged_array([np.ones((2, 2)), np.zeros(3), None, np.ones(1)])
    table = pa.table({"fixed": tensor_array(CUBE), "ragged": ragged})
    pq.write_table(table, tmp_path / "tensors.parquet")
    joined = pa.concat_tables([table, table.slice(1, 2)]).combine_chunks()
    for other in (pq.read_table(tmp_path / "tensors.parquet"), pickle.loads(pickle.dumps(table)), joined.slice(0, 4)):
        assert other.schema.types == table.schema.types
        fixed = tensor_to_numpy(other.column("fixed").combine_chunks(), copy=False)
        np.testing.assert_array_equal(fixed, CUBE)
        cells = tensor_to_numpy(other.column("ragged").combine_chunks(), copy=False)
        assert [None if cell is None else cell.shape for cell in cells] == [(2, 2), (3,), None, (1,)]
