"""Columns of values, of whatever kind users have them in, to Arrow arrays; and Arrow columns to plain types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import DataError
from paceline.data.objects import as_objects, is_objects
from paceline.data.tensors import is_tensor, ragged_array, tensor_array

if TYPE_CHECKING:
    from numpy.typing import NDArray


_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
MAX_STRING_BYTES = 2**31 - 1


def column_array(values: object, name: str, what: str) -> pa.Array:
    """The values of one column as an Arrow array."""
    try:
        array = _to_arrow(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        objects = as_objects(values, f"{what}: column {name!r}")
        if objects is not None:
            return objects
        raise DataError(
            f"{what}: column {name!r} cannot be stored: {str(error).rstrip('.')}."
            " A column is a list or an array of values of one type, one value per row."
        ) from error
    array = contiguous(array)
    if pa.types.is_large_string(array.type) and array.nbytes < MAX_STRING_BYTES:
        array = array.cast(pa.string())  # pandas makes large strings, numpy and lists do not: one type for all
    if isinstance(array, pa.DictionaryArray):
        categories = array.type.value_type
        return plain_dictionary(array, pa.string() if pa.types.is_large_string(categories) else categories)
    return array


def plain_dictionary(array: pa.DictionaryArray, categories: pa.DataType) -> pa.DictionaryArray:
    """With categories of that type, and one type of indices: pandas chooses it by the number of categories."""
    return pa.DictionaryArray.from_arrays(
        array.indices.cast(pa.int32()), array.dictionary.cast(categories), ordered=array.type.ordered
    )


def _to_arrow(values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, np.ndarray):
        return _from_ndarray(values)
    if isinstance(values, list | tuple | range):
        return _from_list(values)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__") or getattr(values, "ndim", 1) == 0:
        raise TypeError(f"{kind_of(values)} is not a column.")
    if type(values).__module__.partition(".")[0] == "pandas":
        if values.dtype == object:
            return _from_list(values.tolist(), from_pandas=True)
        return pa.array(values, from_pandas=True)
    return _from_ndarray(_as_ndarray(values)) if _is_array(values) else _from_list(list(values))


def _from_ndarray(values: NDArray[Any]) -> pa.Array:
    if values.ndim == 0:
        raise TypeError("a single value is not a column.")
    if values.dtype == object:
        return _from_list(list(values) if values.ndim == 1 else values.tolist(), from_pandas=True)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if values.ndim == 1:
        return pa.array(values)
    if values.dtype.kind in "biufmM":
        return tensor_array(values)
    return pa.array(values.tolist())


def _from_list(values: Sequence[Any], *, from_pandas: bool = False) -> pa.Array | pa.ChunkedArray:
    first = next((value for value in values if value is not None), None)
    if not _is_array(first):
        return pa.array(values, from_pandas=from_pandas)
    arrays = [None if value is None else _as_ndarray(value) for value in values]
    present = [array for array in arrays if array is not None]
    shapes = {array.shape for array in present}
    if shapes == {()}:
        return pa.array([None if array is None else array.item() for array in arrays])
    if len(shapes) == 1 and len(present) == len(arrays):
        return _from_ndarray(np.stack(present))
    if all(len(shape) == 1 for shape in shapes):
        return pa.array(arrays)
    return ragged_array(arrays)


def _is_array(value: object) -> bool:
    """True for numpy arrays, tensors and images; not for numpy's scalars, which Arrow understands itself."""
    if isinstance(value, np.ndarray):
        return True
    return not isinstance(value, np.generic) and (hasattr(value, "__array__") or hasattr(value, "__array_interface__"))


def _as_ndarray(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):  # torch refuses tensors that require gradients or lie on a device
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # numpy has no such type
            value = value.float()
    return np.asarray(value)


def contiguous(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """All chunks of a column in one array."""
    if isinstance(array, pa.Array):
        return array
    if array.num_chunks > 1 and array.nbytes >= MAX_STRING_BYTES and array.type in _LARGE:
        array = array.cast(_LARGE[array.type])
    joined = array.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):  # older pyarrow: extension types
        return joined.chunk(0)
    return joined


def kind_of(value: object) -> str:
    """For messages: the value, shortened, and its type."""
    if value is None:
        return "None"
    text = repr(value)
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    return f"{shown} ({type(value).__name__})"


def plain_table(table: pa.Table) -> pa.Table:
    """The table with plain types, and without the metadata of its maker."""
    columns = [plain_column(column) for column in table.columns]
    return pa.Table.from_arrays(columns, names=table.column_names)


def plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """One column with a plain type; the column itself if it has one."""
    large = column.nbytes >= MAX_STRING_BYTES
    wanted = _plain_type(column.type, large)
    if wanted == column.type:
        return column
    if pa.types.is_dictionary(column.type):
        categories = [plain_dictionary(chunk, wanted.value_type) for chunk in column.chunks]
        return pa.chunked_array(categories, type=wanted)
    if isinstance(column.type, pa.BaseExtensionType):
        storage = pa.chunked_array([chunk.storage for chunk in column.chunks], type=column.type.storage_type)
        return plain_column(storage)
    return column.cast(wanted)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of what `plain_table` makes of a table that is not very large."""
    return pa.schema([pa.field(field.name, _plain_type(field.type, large=False)) for field in schema])


def _plain_type(data_type: pa.DataType, large: bool) -> pa.DataType:
    types = pa.types
    if is_tensor(data_type) or is_objects(data_type):
        return data_type
    if isinstance(data_type, pa.BaseExtensionType):
        return _plain_type(data_type.storage_type, large)
    if types.is_string_view(data_type):
        return pa.large_string() if large else pa.string()
    if types.is_binary_view(data_type):
        return pa.large_binary() if large else pa.binary()
    if types.is_dictionary(data_type):
        categories = data_type.value_type
        plain = pa.string() if types.is_large_string(categories) else _plain_type(categories, large=False)
        return pa.dictionary(pa.int32(), plain, data_type.ordered)
    if types.is_list(data_type):
        return pa.list_(_plain_field(data_type.value_field, large))
    if types.is_large_list(data_type):
        return pa.large_list(_plain_field(data_type.value_field, large))
    if types.is_fixed_size_list(data_type):
        return pa.list_(_plain_field(data_type.value_field, large), data_type.list_size)
    if types.is_struct(data_type):
        return pa.struct([_plain_field(field, large) for field in data_type])
    return data_type


def _plain_field(field: pa.Field, large: bool) -> pa.Field:
    return field.with_type(_plain_type(field.type, large))
