"""Writing TFRecord files of tf.train.Example messages, without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import DataError
from paceline.data.formats import to_rows
from paceline.data.sources.tf_format import masked_checksum
from paceline.data.sources.tfrecords import declared_features
from paceline.data.write_formats import FileFormat

if TYPE_CHECKING:
    from paceline.data.block import Chunk

_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
"""The fields of tf.train.Feature."""
Encoder = Callable[[Any], bytes]


class TfRecordsFormat(FileFormat):
    """One record per row. Integers and truth values become int64, floats float32, text UTF-8; nulls are left out."""

    name = extension = "tfrecords"

    def __init__(self, tf_schema: Any = None) -> None:
        self._declared = {} if tf_schema is None else declared_features(tf_schema, "write_tfrecords")

    def write(self, path: Path, schema: pa.Schema, chunks: Iterator[Chunk]) -> None:
        encoders = {field.name: self._encoder(field) for field in schema}
        with path.open("wb") as file:
            for chunk in chunks:
                for row in to_rows(chunk):
                    file.write(_framed(_example(row, encoders)))

    def _encoder(self, field: pa.Field) -> Encoder:
        natural = _encoder(field)
        if not self._declared:
            return natural
        if field.name not in self._declared:
            raise DataError(f"write_tfrecords: tf_schema does not name the column {field.name!r}: add it, or drop it.")
        declared = _ENCODERS[self._declared[field.name].kind]
        if declared is not natural and _texts in (declared, natural):
            raise DataError(
                f"write_tfrecords: column {field.name!r} holds {field.type}, but tf_schema says "
                f"{self._declared[field.name].kind}."
            )
        return declared


def _encoder(field: pa.Field) -> Encoder:
    """How the values of one column are written."""
    kind = field.type
    is_vector = isinstance(kind, pa.FixedShapeTensorType) and len(kind.shape) == 1
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if is_vector or is_list or pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _integers
    if pa.types.is_floating(kind):
        return _floats
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return _texts
    raise DataError(
        f"write_tfrecords: column {field.name!r} holds {field.type}, and TFRecords hold numbers, text, bytes and lists"
        " of these: convert it, drop the column, or use write_parquet."
    )


def _integers(values: Iterable[Any]) -> bytes:
    return _field(_INTEGERS, _field(1, b"".join(_varint(int(value) & (2**64 - 1)) for value in values)))


def _floats(values: Iterable[Any]) -> bytes:
    return _field(_FLOATS, _field(1, np.asarray(values, "<f4").tobytes()))


def _texts(values: Iterable[Any]) -> bytes:
    encoded = (value.encode() if isinstance(value, str) else value for value in values)
    return _field(_BYTES, b"".join(_field(1, value) for value in encoded))


_ENCODERS: dict[str, Encoder] = {"bytes": _texts, "float": _floats, "int64": _integers}


def _example(row: dict[str, Any], encoders: dict[str, Encoder]) -> bytes:
    features = []
    for name, value in row.items():
        if value is None:
            continue
        values = value if isinstance(value, list | np.ndarray) else [value]
        features.append(_field(1, _field(1, name.encode()) + _field(2, encoders[name](values))))
    return _field(1, b"".join(features))


def _framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    checks = struct.pack("<I", masked_checksum(length)), struct.pack("<I", masked_checksum(record))
    return b"".join((length, checks[0], record, checks[1]))


def _field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message whose content has a length."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
