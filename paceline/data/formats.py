"""Between chunks and what users work with: dicts of numpy arrays, pandas frames, Arrow tables, rows.

What becomes of a column:

| Arrow                     | numpy                                            | row            |
|---------------------------|--------------------------------------------------|----------------|
| integers, floats          | the same type; with nulls: floats with NaN       | int, float     |
| bool                      | bool; with nulls: objects (True, False, None)    | bool           |
| string, binary            | objects (str, bytes)                             | str, bytes     |
| timestamp, date, duration | datetime64, timedelta64 (in UTC, without zone)   | datetime, ...  |
| decimal, time, struct     | objects (Decimal, time, dict)                    | the same       |
| dictionary                | its values; in pandas: Categorical               | its value      |
| lists of numbers          | (rows, length) if all are as long, else objects  | list           |
| tensors                   | (rows, *shape); ragged ones: objects (ndarray)   | ndarray        |
| Python objects            | objects                                          | the object     |

The way back is the inverse; arrays of more than one dimension become tensor columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
import pyarrow as pa

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import ConfigError, DataError
from paceline.data.column_arrays import column_array, contiguous, kind_of, plain_table
from paceline.data.objects import is_objects, object_array, objects_of, objects_to_numpy
from paceline.data.tensors import RaggedTensorType, as_ragged, is_tensor, tensor_array, tensor_to_numpy

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from paceline.data.block import Chunk

    Batch: TypeAlias = dict[str, NDArray[Any]] | pd.DataFrame | pa.Table

BatchFormat = Literal["default", "numpy", "pandas", "pyarrow"]

_NUMBERS = frozenset(
    field.id
    for field in (
        pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
        pa.float16(), pa.float32(), pa.float64(),
    )
)  # fmt: skip
_BOOL = pa.bool_().id
_LISTS = frozenset(field.id for field in (pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 1)))
_DICTIONARY = pa.dictionary(pa.int8(), pa.int8()).id


def check_batch_format(value: str | None) -> BatchFormat:
    """The format that the user means; None is the old spelling of "pyarrow", "native" one of "pandas" for tables."""
    if value is None:
        return "pyarrow"
    if value == "native":
        warn_at_users_line('batch_format="native" gives pandas DataFrames, as it did for tables: write "pandas".')
        return "pandas"
    if value not in ("default", "numpy", "pandas", "pyarrow"):
        raise ConfigError(f'batch_format must be "default" (numpy), "numpy", "pandas" or "pyarrow", not {value!r}.')
    return cast("BatchFormat", value)


# -- from chunks ------------------------------------------------------------------------------


def to_batch(chunk: Chunk, batch_format: BatchFormat, *, copy: bool, own: bool = False) -> Batch:
    """A chunk in the format that the user asked for.

    copy=True: memory that is the caller's own to write to. copy=False: may share memory with
    the chunk; numpy arrays may then be read-only, unless `own` says that nobody else refers to the
    chunk's memory. Arrow tables cannot be written to and are never copied.
    """
    if batch_format == "pandas":
        return _to_pandas(chunk, copy=copy or own)  # pandas keeps Arrow's read-only mark, a frame is writable only anew
    if batch_format == "pyarrow":
        return pa.Table.from_batches([chunk])
    names = chunk.schema.names
    batch = {name: to_numpy(column, copy=copy) for name, column in zip(names, chunk.columns, strict=True)}
    return {name: _all_writable(array) for name, array in batch.items()} if own and not copy else batch


def _all_writable(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype == object and len(array) and isinstance(array[0], np.ndarray):  # lists or tensors, cell by cell
        for row, cell in enumerate(array):
            if isinstance(cell, np.ndarray) and not cell.flags.writeable:
                array[row] = writable(cell)
    return array if array.flags.writeable else writable(array)


class _Memory:
    """Memory that is described as writable, and that lives as long as a numpy array refers to it."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict[str, Any], owner: NDArray[Any]) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def writable(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory without Arrow's read-only mark: for those who know that nobody else uses it."""
    interface = array.__array_interface__
    interface["data"] = (interface["data"][0], False)
    return np.asarray(_Memory(interface, array))


def to_numpy(array: pa.Array, *, copy: bool) -> NDArray[Any]:
    """One column as a numpy array; see the table at the top. Numbers without nulls are not copied unless asked."""
    kind = array.type.id
    values: NDArray[Any]
    if kind in _NUMBERS and not array.null_count:
        # Not Arrow's own to_numpy: its first call imports pandas, which takes as long as thousands of batches.
        values = np.from_dlpack(array)
    elif kind in _LISTS:
        values = _lists_to_numpy(array, copy=copy)
    elif is_tensor(array.type):
        return tensor_to_numpy(array, copy)
    elif is_objects(array.type):
        return objects_to_numpy(array)
    elif isinstance(array, pa.ExtensionArray):
        return to_numpy(array.storage, copy=copy)
    elif kind == _DICTIONARY:
        return to_numpy(array.dictionary_decode(), copy=copy)
    else:
        values = array.to_numpy(zero_copy_only=False)
    return values.copy() if copy and not values.flags.writeable else values


def _lists_to_numpy(array: pa.Array, *, copy: bool) -> NDArray[Any]:
    joined = equal_lists(array)
    if joined is not None:
        elements, length = joined
        inner = to_numpy(elements, copy=copy)
        if inner.dtype != object:
            return inner.reshape(len(array), length, *inner.shape[1:])
    cells: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    if copy:
        for row, cell in enumerate(cells):
            if isinstance(cell, np.ndarray):
                cells[row] = cell.copy()
    return cells


def equal_lists(array: pa.Array) -> tuple[pa.Array, int] | None:
    """The elements of all rows and the length of each row; None if lengths differ or leaves are no numbers."""
    if array.null_count or not len(array) or not numbers_inside(array.type):
        return None
    if isinstance(array.type, pa.FixedSizeListType):
        length = array.type.list_size
        return array.values.slice(array.offset * length, len(array) * length), length
    ends = array.offsets.to_numpy()
    lengths = np.diff(ends)
    length = int(lengths[0])
    if not (lengths == length).all():
        return None
    return array.values.slice(int(ends[0]), int(ends[-1] - ends[0])), length


def numbers_inside(data_type: pa.DataType) -> bool:
    """True for numbers and booleans, and for lists and tensors of them."""
    while data_type.id in _LISTS:
        data_type = data_type.value_type
    return data_type.id in _NUMBERS or data_type.id == _BOOL or is_tensor(data_type)


def _to_pandas(chunk: Chunk, *, copy: bool) -> pd.DataFrame:
    import pandas as pd

    cellwise = {
        field.name: chunk.column(field.name)
        for field in chunk.schema
        if is_tensor(field.type) or is_objects(field.type)
    }
    plain = chunk.select([name for name in chunk.schema.names if name not in cellwise])
    frame: pd.DataFrame = plain.replace_schema_metadata(None).to_pandas(
        split_blocks=True
    )  # without metadata: no index columns
    if copy:
        frame = frame.copy()
        for field in plain.schema:
            if field.type.id in _LISTS:  # a copy of a frame shares what its cells refer to
                cells = [cell.copy() if isinstance(cell, np.ndarray) else cell for cell in frame[field.name]]
                frame[field.name] = pd.Series(cells, dtype=object)
    for name, column in cellwise.items():
        values = pd.Series(list(to_numpy(column, copy=copy)), dtype=object, index=pd.RangeIndex(chunk.num_rows))
        frame.insert(chunk.schema.names.index(name), name, values)
    return frame


def to_rows(chunk: Chunk) -> Iterator[dict[str, Any]]:
    """The rows as dicts of Python values; cells of tensor columns are arrays of the caller's own."""
    names = chunk.schema.names
    for cells in zip(*(_cells(column) for column in chunk.columns), strict=True):
        yield dict(zip(names, cells, strict=True))


def _cells(column: pa.Array) -> Sequence[Any]:
    if is_tensor(column.type):
        cells = list(tensor_to_numpy(column, copy=True))
        if column.null_count:
            return [cell if valid else None for cell, valid in zip(cells, column.is_valid().to_pylist(), strict=True)]
        return cells
    if is_objects(column.type):
        return objects_of(column)
    if column.type.id in _NUMBERS and not column.null_count:
        return cast("list[Any]", column.to_numpy().tolist())  # many times quicker than to_pylist
    return cast("list[Any]", column.to_pylist())


# -- to chunks --------------------------------------------------------------------------------


def from_batch(batch: object, what: str) -> Chunk:
    """What a user's function gave back, as a chunk. Errors begin with `what` and name the column.

    Takes dicts of columns (arrays, lists, tensors of torch or TensorFlow, Series), pandas frames, and Arrow
    tables or anything else that speaks Arrow's C stream. May share memory with what it was given.
    """
    if isinstance(batch, pa.RecordBatch | pa.Table):
        check_unique(batch.schema.names, what)
        return batch if isinstance(batch, pa.RecordBatch) else _one_chunk(batch)
    if isinstance(batch, Mapping):
        return _from_columns(batch, what)
    if type(batch).__module__.partition(".")[0] == "pandas" and hasattr(batch, "columns"):
        return _from_frame(cast("pd.DataFrame", batch), what)
    if hasattr(batch, "__arrow_c_stream__") and hasattr(batch, "columns"):  # a Series has the first only
        return _one_chunk(plain_table(pa.table(batch)))
    raise DataError(
        f"{what}: expected a dict of columns, a pandas DataFrame or an Arrow table, not {kind_of(batch)}."
        " A dict maps column names to arrays or lists with one entry per row."
    )


def from_rows(rows: Sequence[Mapping[str, Any]], what: str, *, same_columns: bool = False) -> Chunk:
    """Rows as a chunk. A key that some rows lack is null there, or with `same_columns` an error."""
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"{what}: row {number} must be a dict of column names to values, not {kind_of(row)}.")
        if row.keys() != names.keys():
            if same_columns and number:
                raise _other_columns(list(names), list(row), what)
            names.update(dict.fromkeys(row))
    return _from_columns({name: [row.get(name) for row in rows] for name in names}, what, empty=True)


def _other_columns(before: list[str], now: list[str], what: str) -> DataError:
    odd = [name for name in (*before, *now) if (name in before) != (name in now)]
    return DataError(
        f"{what}: rows have different columns, {before} and {now}. Give all rows the same ones: "
        f"where there is no value for {', '.join(map(repr, odd))}, put None."
    )


def _from_columns(columns: Mapping[str, Any], what: str, *, empty: bool = False) -> Chunk:
    if not columns and not empty:
        raise DataError(f"{what}: an empty dict has no columns; for no rows, give columns of length zero.")
    arrays: dict[str, pa.Array] = {}
    for name, values in columns.items():
        if not isinstance(name, str):
            raise DataError(f"{what}: column names must be strings, not {name!r} ({type(name).__name__}).")
        arrays[name] = column_array(values, name, what)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r}: {length}" for name, length in lengths.items())
        raise DataError(f"{what}: columns must have one length, but they have {listed} rows.")
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _from_frame(frame: pd.DataFrame, what: str) -> Chunk:
    names = [str(name) for name in frame.columns]
    check_unique(names, what)
    arrays = [column_array(frame.iloc[:, at], name, what) for at, name in enumerate(names)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def check_unique(names: Sequence[str], what: str) -> None:
    """Rows are dicts: of two columns with one name, one would be lost."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{what}: there are several columns named {twice!r}; names must be unique.")


# -- chunks among each other ------------------------------------------------------------------


def concat(chunks: Sequence[Chunk]) -> Chunk:
    """One contiguous chunk of all rows. A single chunk is given back as it is."""
    first = chunks[0]
    if len(chunks) == 1:
        return first
    for chunk in chunks:
        if chunk.schema != first.schema:
            raise DataError(
                f"Chunks with different columns cannot be joined:\n{describe_schema(first.schema)}\nand\n"
                f"{describe_schema(chunk.schema)}"
            )
    return _one_chunk(pa.Table.from_batches(chunks))


def _one_chunk(table: pa.Table) -> Chunk:
    columns = [contiguous(column) for column in table.columns]
    if [column.type for column in columns] == table.schema.types:
        return pa.RecordBatch.from_arrays(columns, schema=table.schema)
    return pa.RecordBatch.from_arrays(columns, names=table.column_names)


def describe_schema(schema: pa.Schema) -> str:
    """For messages: one line per column."""
    return "\n".join(f"  {field.name}: {field.type}" for field in schema) or "  (no columns)"


def conform(chunk: Chunk, schema: pa.Schema, place: str) -> Chunk:
    """The chunk with exactly this schema: columns in its order, types changed where no value is lost by it.

    Raises DataError that begins with `place` and names the column.
    """
    if chunk.schema.equals(schema):
        return chunk
    columns = dict(zip(chunk.schema.names, chunk.columns, strict=True))
    for name in schema.names:
        if name not in columns:
            raise DataError(f"{place}: column {name!r} is missing; the columns are {chunk.schema.names}.")
    expected = set(schema.names)
    for name in columns:
        if name not in expected:
            raise DataError(f"{place}: there is an additional column {name!r}; expected were {schema.names}.")
    conformed = [_conform_column(columns[field.name], field, place) for field in schema]
    return pa.RecordBatch.from_arrays(conformed, schema=schema)


def _conform_column(array: pa.Array, field: pa.Field, place: str) -> pa.Array:
    if array.type == field.type:
        return array
    reason = ""
    try:
        if isinstance(field.type, RaggedTensorType) and is_tensor(array.type):
            array = as_ragged(array)
        elif isinstance(field.type, pa.FixedShapeTensorType) and array.type.id in _LISTS:
            array = _lists_to_tensor(array)
        elif isinstance(array.type, pa.FixedShapeTensorType) and field.type.id in _LISTS and len(array.type.shape) == 1:
            array = array.storage
        elif is_objects(field.type):
            array = object_array(array.to_pylist())
        if array.type == field.type:
            return array
        if _keeps_values(array.type, field.type):
            return array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = f" ({error})"
    if pa.types.is_null(field.type):
        reason = " (there were only nulls before)"
    raise DataError(
        f"{place}: column {field.name!r} has type {array.type}, but {field.type} was expected{reason}."
        " Give the column one type in all files or results."
    )


def _lists_to_tensor(array: pa.Array) -> pa.Array:
    values = _lists_to_numpy(array, copy=False)
    return array if values.dtype == object else tensor_array(values)


def _keeps_values(have: pa.DataType, want: pa.DataType) -> bool:
    """True if a checked cast from one to the other cannot change what a value means."""
    types = pa.types
    if types.is_null(have):
        return True
    if types.is_dictionary(have):
        return bool(have.value_type == want) or _keeps_values(have.value_type, want)
    if types.is_integer(have):  # Arrow checks that every value fits
        return bool(types.is_integer(want) or types.is_floating(want))
    if types.is_floating(have):
        return bool(types.is_floating(want)) and have.bit_width <= want.bit_width
    if have.id in _LISTS and want.id in _LISTS:
        return bool(have.value_type == want.value_type) or _keeps_values(have.value_type, want.value_type)
    if types.is_timestamp(have) and types.is_timestamp(want) and (have.tz is None) != (want.tz is None):
        return False  # which instant a time without zone means is not known
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    blobs = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    times = (types.is_timestamp, types.is_date)
    for family in (texts, blobs, times, (types.is_decimal,), (types.is_duration,), (types.is_time,)):
        if any(belongs(have) for belongs in family):
            return any(belongs(want) for belongs in family)
    return False
