"""Arrow bodies: an IPC stream, checked before anything looks at its values."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paceline.serve.columns import InputColumns
from paceline.serve.rows import RequestRows
from paceline.web.problem import Problem

MEDIA_TYPE = b"application/vnd.apache.arrow.stream"
_INDEX_COLUMN = "__index_level_"
_COMPRESSION_FIELD = 3
_DICTIONARY_DATA_FIELD = 1
_HEADER_FIELD = 2
_MOST_GROWTH = 8
"""Text that is stored once and referred to by many rows may grow to this many times the body."""


def decode(body: bytes, columns: InputColumns, max_rows: int) -> RequestRows:
    """The rows of a request's body; raises the Problem that the client gets."""
    if not body:
        raise Problem(400, "The body is empty: send an Arrow IPC stream with one row for each prediction.")
    try:
        _refuse_compressed(body)
        table = pa.ipc.open_stream(body).read_all()
        if table.num_rows > max_rows:
            raise Problem(413, f"The request has {table.num_rows} rows; this server takes {max_rows} at a time.")
        table = _plain(table, columns)
        table.validate(full=True)
        for name, column in zip(table.column_names, table.columns, strict=True):
            _refuse_growth(name, column, len(body))
        batch = table.combine_chunks().to_batches()
    except (pa.ArrowException, struct.error, ValueError, OSError) as error:
        raise Problem(400, f"The body cannot be read as an Arrow IPC stream: {error}.") from None
    if not batch:
        raise Problem(422, "There are no rows to predict.")
    return RequestRows(table.num_rows, batch[0], ("arrow", table.schema))


def encode(answer: pa.RecordBatch) -> bytes:
    """The answer as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, answer.schema) as writer:
        writer.write_batch(answer)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _plain(table: pa.Table, columns: InputColumns) -> pa.Table:
    """The table with the model's columns in the model's order."""
    names = [name for name in table.column_names if not name.startswith(_INDEX_COLUMN)]
    if len(set(names)) < len(names):
        raise Problem(422, "A column name appears twice.")
    columns.check_names(names)
    table = table.select(list(columns.kinds) if columns.complete else names).replace_schema_metadata(None)
    if not table.column_names:
        raise Problem(422, "There are no columns.")
    for field in table.schema:
        if not _is_plain(field.type):
            raise Problem(422, f"Column {field.name!r} has type {field.type}, which is not supported.")
        if columns.kinds.get(field.name) == "number" and not _is_number(field.type):
            raise Problem(422, f"Column {field.name!r} takes numbers, but it has type {field.type}.")
    return table


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def _is_plain(kind: pa.DataType) -> bool:
    """Types whose values lie in the body itself, each once."""
    types = pa.types
    if isinstance(kind, pa.FixedShapeTensorType):
        return _is_number(kind.value_type)
    if types.is_dictionary(kind):
        return _is_text(kind.value_type) or _is_number(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return not types.is_dictionary(kind.value_type) and _is_plain(kind.value_type)  # its text could grow unseen
    return _is_number(kind) or _is_text(kind) or types.is_temporal(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _refuse_growth(name: str, column: pa.ChunkedArray, body_size: int) -> None:
    if not (pa.types.is_dictionary(column.type) and _is_text(column.type.value_type)):
        return
    size = sum(
        pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() or 0 for chunk in column.chunks
    )
    if size > _MOST_GROWTH * body_size:
        raise Problem(413, f"Column {name!r} stands for {size} bytes of text, far more than the body has.")


def _refuse_compressed(body: bytes) -> None:
    """A small compressed body may unpack to any size, and Arrow unpacks while it reads."""
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(body)):
        if message.type == "schema":
            continue
        table = _Table(message.metadata.to_pybytes(), None).table(_HEADER_FIELD)
        if message.type == "dictionary" and table is not None:
            table = table.table(_DICTIONARY_DATA_FIELD)
        if table is None or table.table(_COMPRESSION_FIELD) is not None:
            raise Problem(415, "Compressed Arrow streams are not supported: write it without compression.")


class _Table:
    """A table of a flatbuffer: just enough of the format to see whether a field is there."""

    def __init__(self, data: bytes, position: int | None) -> None:
        self._data = data
        self._position: int = struct.unpack_from("<I", data, 0)[0] if position is None else position

    def table(self, field: int) -> _Table | None:
        """The table that a field refers to; None if the field is not there."""
        fields = self._position - self._at("<i", self._position)
        entry = 4 + 2 * field
        offset = self._at("<H", fields + entry) if entry < self._at("<H", fields) else 0
        if offset == 0:
            return None
        place = self._position + offset
        return _Table(self._data, place + self._at("<I", place))

    def _at(self, form: str, position: int) -> Any:
        if position < 0:
            raise struct.error("a reference that leads out of the message")
        return struct.unpack_from(form, self._data, position)[0]
