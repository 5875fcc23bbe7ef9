"""Reading tf.train.Example: three small protobuf messages inside each other.

Example { Features features = 1 }
Features { map<string, Feature> feature = 1 }        an entry: key = 1, value = 2
Feature { BytesList = 1 | FloatList = 2 | Int64List = 3 }   each: repeated value = 1
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

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
