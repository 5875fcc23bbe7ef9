"""Columns of Python objects that Arrow has no type for: each value as a pickle.

Unpickling runs code, so only what this program has put into such a column may be unpickled. That is why the type is
not registered with Arrow: whatever reads a file, ours or another library's, gets plain bytes from a column that claims
to be of this type. Inside the program the type stays with the data; `write_rows` and `read_rows` carry it
between processes. Such columns are not written to files.
"""

from __future__ import annotations

import datetime
import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import DataError, SerializationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paceline.data.block import Chunk


_PLAIN = (int, float, str, bytes, bytearray, Decimal, datetime.date, datetime.time, datetime.timedelta, np.generic)


class _ObjectScalar(pa.ExtensionScalar):  # type: ignore[misc]  # pyarrow has no type hints
    def as_py(self, **_: Any) -> Any:
        return None if self.value is None else pickle.loads(self.value.as_py())


class ObjectType(pa.ExtensionType):  # type: ignore[misc]
    """Any Python values. Never registered with Arrow; see above."""

    def __init__(self) -> None:
        super().__init__(pa.large_binary(), "paceline.objects")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> ObjectType:
        return cls()

    def __arrow_ext_scalar_class__(self) -> type[_ObjectScalar]:
        return _ObjectScalar

    def __str__(self) -> str:
        return "Python objects"


def object_array(values: Iterable[Any]) -> pa.Array:
    """A column of these objects; None is a null."""
    from paceline.engine.serialization import dumps

    whom, advice = "other processes", "Datasets hold what can be pickled: make such objects where they are used."
    pickles = [None if value is None else dumps(value, "the value", whom, advice) for value in values]
    return wrapped(pa.array(pickles, pa.large_binary()))


def wrapped(pickles: pa.Array) -> pa.Array:
    """Pickles that this program has made, as a column of objects."""
    return pa.ExtensionArray.from_storage(ObjectType(), pickles)


def objects_of(array: pa.Array) -> list[Any]:
    """The objects of a column, made anew."""
    return [None if value is None else pickle.loads(value) for value in array.storage.to_pylist()]


def objects_to_numpy(array: pa.Array) -> NDArray[Any]:
    cells = np.empty(len(array), dtype=object)
    cells[:] = objects_of(array)
    return cells


def is_objects(kind: pa.DataType) -> bool:
    return isinstance(kind, ObjectType)


def as_objects(values: Any, what: str) -> pa.Array | None:
    """A column of objects, if there is one among the values; None if they are plain values that do not fit together."""
    if isinstance(values, np.ndarray):
        values = list(values) if values.dtype == object and values.ndim == 1 else None
    elif str(getattr(values, "dtype", "")) == "object" and hasattr(values, "tolist"):  # a Series
        values = values.tolist()
    if not isinstance(values, list | tuple) or not any(map(_holds_object, values)):
        return None
    try:
        return object_array(None if _is_missing(value) else value for value in values)
    except SerializationError as error:
        raise DataError(f"{what}: {error}") from error


def _is_missing(value: Any) -> bool:
    return isinstance(value, float) and value != value


def _holds_object(value: Any) -> bool:
    """True for what Arrow has no type for, alone or in lists and dicts."""
    if value is None or isinstance(value, _PLAIN) or hasattr(value, "__array__"):
        return False
    if isinstance(value, Mapping):
        return any(map(_holds_object, value.values()))
    if isinstance(value, Sequence | set | frozenset):
        return any(map(_holds_object, value))
    return type(value).__module__.partition(".")[0] != "pandas"  # its NA and NaT are nulls


def check_no_objects(schema: pa.Schema, what: str) -> None:
    """Files hold no pickles: whoever reads them would have to trust whoever wrote them."""
    names = [field.name for field in schema if is_objects(field.type)]
    if names:
        raise DataError(
            f"{what}: {', '.join(map(repr, names))} holds Python objects, which are not written to files. Turn them "
            f"into numbers, text or dicts (map), or leave the column out: drop_columns({names})."
        )


_NOTE = b"paceline.objects"


def write_rows(sink: Any, schema: pa.Schema, chunks: Iterable[Chunk]) -> None:
    """Schema and rows, dictionaries included."""
    stored = _stored_schema(schema)
    with pa.ipc.new_stream(sink, stored) as writer:
        for chunk in chunks:
            writer.write_batch(chunk if stored is schema else _stored_form(chunk, stored))


def packed(schema: pa.Schema, chunks: Iterable[Chunk]) -> pa.Buffer:
    """The same in memory."""
    sink = pa.BufferOutputStream()
    write_rows(sink, schema, chunks)
    return sink.getvalue()


def read_rows(source: Any) -> tuple[pa.Schema, list[Chunk]]:
    """What `write_rows` wrote; shares memory with `source` where that is possible."""
    reader = pa.ipc.open_stream(source)
    note = (reader.schema.metadata or {}).get(_NOTE)
    if note is None:
        return reader.schema, list(reader)
    names = set(json.loads(note))
    empty = _with_objects(pa.RecordBatch.from_pylist([], reader.schema), names)
    return empty.schema, [_with_objects(chunk, names) for chunk in reader]


def _stored_schema(schema: pa.Schema) -> pa.Schema:
    metadata = dict(schema.metadata or {})
    names = [field.name for field in schema if is_objects(field.type)]
    if not names and _NOTE not in metadata:
        return schema
    metadata.pop(_NOTE, None)
    if names:
        metadata[_NOTE] = json.dumps(names).encode()
    fields = [field.with_type(field.type.storage_type) if is_objects(field.type) else field for field in schema]
    return pa.schema(fields, metadata)


def _stored_form(chunk: Chunk, stored: pa.Schema) -> Chunk:
    columns = [column.storage if is_objects(column.type) else column for column in chunk.columns]
    return pa.RecordBatch.from_arrays(columns, schema=stored)


def _with_objects(chunk: Chunk, names: set[str]) -> Chunk:
    fields = zip(chunk.schema.names, chunk.columns, strict=True)
    columns = {name: wrapped(column) if name in names else column for name, column in fields}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
