"""TFRecord files and tf.train.Example messages as bytes.

The frame around each record is length, checksum, content, checksum. The content is a protocol buffer.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from paceline.air.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray


_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, with the bits reversed."""
_STEP = 1024
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


def read_records(stream: pa.NativeFile, label: str) -> Iterator[bytes]:
    """The records of a file; DataError for what is damaged or cut off."""
    number = 0
    while header := _read(stream, _HEADER.size, label, number):
        if len(header) < _HEADER.size:
            raise _cut_off(label, number)
        length, length_checksum = _HEADER.unpack(header)
        if masked_checksum(header[:8]) != length_checksum:
            raise DataError(f"{label}, record {number}: the length is damaged, or this is no TFRecord file.")
        record = _read(stream, length, label, number)
        footer = _read(stream, _FOOTER.size, label, number)
        if len(record) < length or len(footer) < _FOOTER.size:
            raise _cut_off(label, number)
        if masked_checksum(record) != _FOOTER.unpack(footer)[0]:
            raise DataError(f"{label}, record {number}: the content is damaged (its checksum is wrong).")
        yield record
        number += 1


def _read(stream: pa.NativeFile, size: int, label: str, number: int) -> bytes:
    try:
        return bytes(stream.read(size))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{label}, record {number} cannot be read: {error}") from error


def _cut_off(label: str, number: int) -> DataError:
    return DataError(f"{label} ends in the middle of record {number}: it is not complete.")


def masked_checksum(content: bytes) -> int:
    """CRC32C as TFRecord files hold it: rotated and shifted, so that it differs from one over stored checksums."""
    value = crc32c(content)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(content: bytes) -> int:
    """CRC32C (Castagnoli): by google-crc32c where it is installed, which is a hundred times faster. Without it by
    tables of what each byte value contributes at each distance from the end."""
    by_library = _library()
    if by_library is not None:
        return by_library(content)
    return crc32c_by_tables(content)


@functools.cache
def _library() -> Callable[[bytes], int] | None:
    try:
        from google_crc32c import value
    except ImportError:
        return None
    checksum: Callable[[bytes], int] = value
    return checksum


def crc32c_by_tables(content: bytes) -> int:
    state = 0xFFFFFFFF
    data = np.frombuffer(content, np.uint8)
    for start in range(0, len(data), _STEP):
        part = data[start : start + _STEP]
        state = _advance(state, part)
    return state ^ 0xFFFFFFFF


def _advance(state: int, part: NDArray[np.uint8]) -> int:
    # The state has the effect of being combined with the next four bytes; what they do not use is shifted on.
    tables, length = _tables(), len(part)
    part = part.copy()
    for index in range(min(4, length)):
        part[index] ^= (state >> (8 * index)) & 0xFF
    carried = state >> (8 * length) if length < 4 else 0
    contributions = tables[np.arange(length - 1, -1, -1), part]
    return int(np.bitwise_xor.reduce(contributions)) ^ carried


@functools.cache
def _tables() -> NDArray[np.uint32]:
    """tables[d, b]: the checksum of the byte b followed by d zero bytes, from a state of zero."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), first >> np.uint32(1))
    tables: NDArray[Any] = np.empty((_STEP, 256), np.uint32)
    tables[0] = first
    for distance in range(1, _STEP):
        previous = tables[distance - 1]
        tables[distance] = (previous >> np.uint32(8)) ^ first[previous & np.uint32(0xFF)]
    return tables


_FEW_BYTES = 64
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_KINDS: dict[int, Literal["bytes", "float", "int64"]] = {1: "bytes", 2: "float", 3: "int64"}


@dataclass(frozen=True)
class Feature:
    """One feature of one record."""

    kind: Literal["bytes", "float", "int64"]
    values: Any
    """A list of bytes, or a list or array of numbers."""


def parse_example(record: bytes) -> dict[str, Feature]:
    """The features by name. ValueError for what is no such message."""
    features: dict[str, Feature] = {}
    for number, content in _fields(memoryview(record)):
        if number != 1:
            continue
        for entry_number, entry in _fields(_message(content)):
            if entry_number == 1:
                name, feature = _parse_entry(_message(entry))
                features[name] = feature
    return features


def _parse_entry(entry: memoryview) -> tuple[str, Feature]:
    name, feature = "", Feature("bytes", [])
    for number, content in _fields(entry):
        if number == 1:
            name = str(_message(content), "utf-8")
        elif number == 2:
            for kind, values in _fields(_message(content)):
                if kind in _KINDS:
                    feature = Feature(_KINDS[kind], _parse_list(_KINDS[kind], _message(values)))
    return name, feature


def _parse_list(kind: str, content: memoryview) -> Any:
    values: Any = []
    for number, value in _fields(content):
        if number != 1:
            continue
        if kind == "bytes":
            values.append(bytes(_message(value)))
        elif isinstance(value, memoryview):  # all numbers of a list in one field
            packed = _packed_floats(value) if kind == "float" else _packed_varints(value)
            values = [*values, *packed] if len(values) else packed
        else:
            values.append(struct.unpack("<f", struct.pack("<I", value))[0] if kind == "float" else _signed(value))
    return values


def _packed_floats(content: memoryview) -> Any:
    if len(content) % 4:
        raise ValueError("a list of floats whose length is no multiple of four bytes")
    return np.frombuffer(content, "<f4")


def _packed_varints(content: memoryview) -> Any:
    if len(content) > _FEW_BYTES:
        return _many_varints(content)
    values, position = [], 0
    while position < len(content):
        value, position = _varint(content, position)
        values.append(_signed(value))
    return values


def _many_varints(content: memoryview) -> Any:
    """The same without work per number in Python: byte k of all numbers at once."""
    data = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(data < 0x80)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        raise ValueError("a list of integers that is cut off")
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    lengths = ends - starts + 1
    if len(lengths) and lengths.max() > 10:
        raise ValueError("an integer of more than ten bytes")
    values = np.zeros(len(ends), np.uint64)
    for place in range(int(lengths.max()) if len(lengths) else 0):
        longer = lengths > place
        part = data[starts[longer] + place].astype(np.uint64) & np.uint64(0x7F)
        values[longer] |= part << np.uint64(7 * place)
    return values.view(np.int64)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


# -- the wire format ----------------------------------------------------------------------


def _fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The number and the content of each field of a message."""
    position, end = 0, len(content)
    while position < end:
        tag, position = _varint(content, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _varint(content, position)
            yield number, value
            continue
        if wire_type == _LENGTH:
            length, position = _varint(content, position)
        elif wire_type in (_FIXED32, _FIXED64):
            length = 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"a field of unknown wire type {wire_type}")
        if position + length > end:
            raise ValueError("a field that is longer than its message")
        part = content[position : position + length]
        position += length
        yield number, part if wire_type == _LENGTH else int.from_bytes(part, "little")


def _varint(content: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(content) and shift < 70:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), position
        shift += 7
    raise ValueError("an integer that is cut off or too long")


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message was expected")
    return value
