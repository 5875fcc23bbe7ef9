"""The frame around each record of a TFRecord file: length, checksum, content, checksum."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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
    """CRC32C (Castagnoli), by tables of what each byte value contributes at each distance from the end."""
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
