"""Tensor columns: one n-dimensional array per row.

Arrays of one shape use Arrow's own fixed-shape tensor type, so other tools can read what is written.
Arrays whose shapes differ from row to row (images of several sizes) use `RaggedTensorType`.
Both keep the elements of all rows next to each other: to numpy and back costs no work per element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RaggedTensorType(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no type hints
    """Arrays of any shape, also of any number of dimensions, with elements of one type."""

    def __init__(self, value_type: pa.DataType) -> None:
        # 64-bit offsets: a chunk of large images easily has more than 2**31 elements.
        storage = pa.struct([("values", pa.large_list(value_type)), ("shape", pa.list_(pa.int32()))])
        super().__init__(storage, "paceline.ragged_tensor")

    @property
    def value_type(self) -> pa.DataType:
        """The type of an element."""
        return self.storage_type.field("values").type.value_type

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> RaggedTensorType:
        return cls(storage_type.field("values").type.value_type)


def _register() -> None:
    """So that the type survives Parquet, IPC files and pickling."""
    try:
        pa.register_extension_type(RaggedTensorType(pa.int8()))
    except pa.ArrowKeyError:  # this module was loaded a second time: its class is the one to use
        pa.unregister_extension_type("paceline.ragged_tensor")
        pa.register_extension_type(RaggedTensorType(pa.int8()))


_register()


def is_tensor(data_type: pa.DataType) -> bool:
    """True for both kinds of tensor columns."""
    return isinstance(data_type, pa.FixedShapeTensorType | RaggedTensorType)


# -- making them ------------------------------------------------------------------------------


def tensor_array(values: NDArray[Any]) -> pa.Array:
    """A column of `len(values)` tensors; shares memory with `values` where they lie in row order."""
    shape = values.shape[1:]
    elements = _elements(values)
    storage_type = pa.list_(elements.type, math.prod(shape))
    # from_buffers takes the number of rows as given, which an empty shape alone would not tell.
    storage = pa.Array.from_buffers(storage_type, len(values), [None], children=[elements])
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(elements.type, shape), storage)


def ragged_array(arrays: Sequence[NDArray[Any] | None]) -> pa.Array:
    """A column of tensors of different shapes; None is a null. Element types are widened to a common one."""
    present = [array for array in arrays if array is not None]
    dtype = np.result_type(*{array.dtype for array in present}) if present else np.dtype(np.float64)
    flat = [array.astype(dtype, copy=False).reshape(-1) for array in present]
    elements = _elements(np.concatenate(flat) if flat else np.empty(0, dtype))
    missing = np.array([array is None for array in arrays], dtype=bool)
    sizes = [0 if array is None else array.size for array in arrays]
    ranks = [0 if array is None else array.ndim for array in arrays]
    lengths = np.array([length for array in present for length in array.shape], dtype=np.int32)
    values = pa.LargeListArray.from_arrays(_offsets(sizes, np.int64), elements)
    shapes = pa.ListArray.from_arrays(_offsets(ranks, np.int32), pa.array(lengths))
    storage = pa.StructArray.from_arrays(
        [values, shapes], names=["values", "shape"], mask=pa.array(missing) if missing.any() else None
    )
    return pa.ExtensionArray.from_storage(RaggedTensorType(elements.type), storage)


def as_ragged(array: pa.Array) -> pa.Array:
    """A tensor column of either kind as a ragged one."""
    if isinstance(array.type, RaggedTensorType):
        return array
    cells = tensor_to_numpy(array, copy=False)
    return ragged_array(
        [cell if valid else None for cell, valid in zip(cells, array.is_valid().to_numpy(False), strict=True)]
    )


def _elements(values: NDArray[Any]) -> pa.Array:
    return pa.array(np.ascontiguousarray(values).reshape(-1))


def _offsets(lengths: Sequence[int], dtype: type[np.signedinteger[Any]]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, dtype=dtype)
    np.cumsum(lengths, out=offsets[1:])
    return pa.array(offsets)


# -- reading them -----------------------------------------------------------------------------


def tensor_to_numpy(array: pa.Array, copy: bool) -> NDArray[Any]:
    """Fixed shape: an array of shape (rows, *shape). Ragged: an object array of arrays.

    Null rows: NaN for fixed shapes of numbers, else None in an object array. With `copy`, all of it is writable.
    """
    if isinstance(array.type, RaggedTensorType):
        return _ragged_to_numpy(array, copy)
    if not isinstance(array.type, pa.FixedShapeTensorType):
        raise TypeError(f"not a tensor column: {array.type}")
    cells = _cells(array)
    if array.null_count:
        return _with_nulls(cells, array.is_null().to_numpy(zero_copy_only=False))
    if copy and not cells.flags.writeable:
        return cells.copy()
    return cells


def _cells(array: pa.Array) -> NDArray[Any]:
    """All cells, whatever stands in null ones."""
    storage, rows = array.storage, len(array)
    size = storage.type.list_size
    elements = storage.values.slice(storage.offset * size, rows * size).to_numpy(zero_copy_only=False)
    cells: NDArray[Any] = elements.reshape(rows, *array.type.shape)
    order = array.type.permutation
    if order is not None and order != sorted(order):  # stored in another order of axes than they are meant
        cells = cells.transpose(0, *(axis + 1 for axis in order))
    return cells


def _with_nulls(cells: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[Any]:
    if cells.dtype.kind in "iuf":
        filled = cells.astype(cells.dtype if cells.dtype.kind == "f" else np.float64)
        filled[missing] = np.nan
        return filled
    return _objects([None if null else cell.copy() for cell, null in zip(cells, missing, strict=True)])


def _ragged_to_numpy(array: pa.Array, copy: bool) -> NDArray[Any]:
    values, shapes = array.storage.field("values"), array.storage.field("shape")
    elements = values.values.to_numpy(zero_copy_only=False)
    if copy and not elements.flags.writeable:
        elements = elements.copy()
    ends, axes = values.offsets.to_pylist(), shapes.to_pylist()
    cells: list[NDArray[Any] | None] = []
    for row, valid in enumerate(array.is_valid().to_pylist()):
        cells.append(elements[ends[row] : ends[row + 1]].reshape(axes[row]) if valid else None)
    return _objects(cells)


def _objects(cells: Sequence[NDArray[Any] | None]) -> NDArray[Any]:
    """An object array of exactly these cells; numpy itself would join cells of one shape."""
    result = np.empty(len(cells), dtype=object)
    for row, cell in enumerate(cells):
        result[row] = cell
    return result
