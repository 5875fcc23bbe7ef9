"""Rows in Arrow's stream form, on their way through memory, sockets and files without a name to other processes.

Only what this program has written is read here. Columns of Python objects are noted in the schema's metadata, always
anew: a note that came in with somebody's file is removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paceline.data.objects import is_objects, wrapped

if TYPE_CHECKING:
    from paceline.data.block import Chunk

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
