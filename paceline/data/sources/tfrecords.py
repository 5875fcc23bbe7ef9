"""TFRecord files of tf.train.Example messages, without TensorFlow.

A feature that has exactly one value in every record of the first file's beginning becomes a plain
column, any other a column of lists; `schema` says it where that guess is wrong. `tf_schema` (a Schema of
tensorflow-metadata) names the types; how many values a feature has it may leave open.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from paceline.air.errors import ConfigError, DataError
from paceline.data.block import ReadRequest
from paceline.data.formats import to_rows
from paceline.data.sources.file_source import WholeFileSource, portions
from paceline.data.sources.lines import ByteRange, open_range
from paceline.data.sources.tf_format import Feature, masked_checksum, parse_example, read_records
from paceline.data.write_formats import FileFormat

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.sources.listed_file import ListedFile

_KINDS: dict[int, Literal["bytes", "int64", "float"]] = {1: "bytes", 2: "int64", 3: "float"}
"""FeatureType of tensorflow_metadata.proto.v0.schema_pb2."""


@dataclass(frozen=True)
class DeclaredFeature:
    kind: Literal["bytes", "int64", "float"]
    single: bool | None
    """True: exactly one value; False: a list; None: the schema does not say."""


def declared_features(schema: Any, function: str) -> dict[str, DeclaredFeature]:
    """The features by name."""
    features = getattr(schema, "feature", None)
    if features is None:
        raise ConfigError(
            f"{function}: tf_schema is a {type(schema).__name__}; give a Schema of tensorflow-metadata"
            " (tensorflow_metadata.proto.v0.schema_pb2)."
        )
    return {feature.name: _declared(feature, function) for feature in features}


def _declared(feature: Any, function: str) -> DeclaredFeature:
    if feature.type not in _KINDS:
        raise ConfigError(
            f"{function}: feature {feature.name!r} of tf_schema has type {feature.type}; give BYTES, INT or FLOAT."
        )
    return DeclaredFeature(_KINDS[feature.type], _is_single(feature))


def _is_single(feature: Any) -> bool | None:
    if _has(feature, "value_count"):
        return bool(feature.value_count.min == feature.value_count.max == 1)
    if _has(feature, "shape"):
        return not len(feature.shape.dim)
    return None


def _has(feature: Any, name: str) -> bool:
    try:
        return bool(feature.HasField(name))
    except (AttributeError, ValueError):  # a newer schema may not know it
        return False


_SAMPLE_RECORDS = 4096
_SAMPLE_BYTES = 4 << 20
_CHUNK_BYTES = 8 << 20
_TYPES = {"bytes": pa.binary(), "float": pa.float32(), "int64": pa.int64()}


class TfRecordSource(WholeFileSource):
    """One block per file; names ending in .gz are decompressed."""

    format = "tfrecords"

    def __init__(self, files: tuple[ListedFile, ...], schema: pa.Schema | None, tf_schema: Any = None) -> None:
        super().__init__(files)
        self._schema = schema
        self._declared = {} if tf_schema is None else declared_features(tf_schema, "read_tfrecords")

    def _find_schema(self) -> pa.Schema:
        return _infer(self._sample(), self._declared)

    def _sample(self) -> list[dict[str, Feature]]:
        sample: list[dict[str, Feature]] = []
        size = 0
        for index in range(len(self.files)):
            for _, record, features in self._examples(index):
                sample.append(features)
                size += len(record)
                if len(sample) >= _SAMPLE_RECORDS or size >= _SAMPLE_BYTES:
                    return sample
            if sample:
                return sample
        return sample

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        yield from portions(self._decode(block, request.chunk_rows), request, self.files[block].label)

    def _decode(self, index: int, chunk_rows: int) -> Iterator[Chunk]:
        schema = self.schema()
        label = self.files[index].label
        columns: dict[str, list[Any]] = {name: [] for name in schema.names}
        first = rows = size = 0
        for number, record, features in self._examples(index):
            self._add(features, columns, f"{label}, record {number}")
            rows += 1
            size += len(record)
            if rows == chunk_rows or size >= _CHUNK_BYTES:
                yield _chunk(columns, schema, f"{label}, records {first} to {number}")
                columns = {name: [] for name in schema.names}
                first, rows, size = number + 1, 0, 0
        if rows:
            yield _chunk(columns, schema, f"{label}, records {first} to {first + rows - 1}")

    def _examples(self, index: int) -> Iterator[tuple[int, bytes, dict[str, Feature]]]:
        file = self.files[index]
        with open_range(file, ByteRange(index, 0, file.size, True)) as stream:
            for number, record in enumerate(read_records(stream, file.label)):
                try:
                    yield number, record, parse_example(record)
                except ValueError as error:
                    raise DataError(f"{file.label}, record {number} is not a tf.train.Example: {error}") from error

    def _add(self, features: dict[str, Feature], columns: dict[str, list[Any]], place: str) -> None:
        schema = self.schema()
        for name in features:
            if name not in columns:
                raise DataError(
                    f"{place} has a feature {name!r} that the first records do not have. "
                    "Name all features and their types: read_tfrecords(..., schema=pyarrow.schema({...}))."
                )
        for name, column in columns.items():
            feature = features.get(name)
            if feature is None:
                column.append(None)
            elif pa.types.is_list(schema.field(name).type):
                column.append(feature.values)
            elif len(feature.values) <= 1:
                column.append(feature.values[0] if len(feature.values) else None)
            else:
                raise DataError(
                    f"{place}: feature {name!r} has {len(feature.values)} values, but the first records have one. "
                    f"Make it a list: read_tfrecords(..., schema=pyarrow.schema({{{name!r}: "
                    f"pyarrow.list_(...), ...}}))."
                )


def _infer(sample: list[dict[str, Feature]], declared: dict[str, DeclaredFeature]) -> pa.Schema:
    fields: dict[str, pa.DataType] = {}
    for name in dict.fromkeys([*declared, *(name for features in sample for name in features)]):
        present = [features[name] for features in sample if name in features]
        said = declared.get(name)
        if declared and said is None:
            raise DataError(f"the records have a feature {name!r} that tf_schema does not name: add it there.")
        if said is not None:
            kind = _TYPES[said.kind]
        else:
            kind = _TYPES[next((feature.kind for feature in present if len(feature.values)), present[0].kind)]
        single = said.single if said is not None else None
        if single is None:
            single = all(len(feature.values) == 1 for feature in present)
        fields[name] = kind if single else pa.list_(kind)
    return pa.schema([pa.field(name, fields[name]) for name in sorted(fields)])


def _chunk(columns: dict[str, list[Any]], schema: pa.Schema, place: str) -> Chunk:
    arrays = []
    for field in schema:
        try:
            arrays.append(pa.array(columns[field.name], field.type))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"{place}: feature {field.name!r} does not fit type {field.type}: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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
