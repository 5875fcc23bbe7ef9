"""Arrow types that other tools make, in the types that the rest of this package works with.

Polars gives string views and unsigned dictionary indices, Hugging Face datasets bring extension types
of their own. Views become plain strings and lists, extension types their storage; tensors stay tensors.
"""

from __future__ import annotations

import pyarrow as pa

from paceline.data.column_arrays import MAX_STRING_BYTES, plain_dictionary
from paceline.data.objects import is_objects
from paceline.data.tensors import is_tensor


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
