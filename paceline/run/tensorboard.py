"""events.out.tfevents.*: the numeric metrics for TensorBoard, and how its event files are written.

A file is a sequence of records: length (8 bytes), checksum of the length, payload, checksum
of the payload. The checksum is a masked CRC-32C; the payload is a protobuf `Event`.

The checksum is what costs. It is linear in the bits of the payload, and two events with the
same tags differ in few bytes only: time, step and values. So a template keeps the checksum
of the rest. A value's share is carried over the value and the tag that follows it in one step,
with a table for that distance: tags of equal length share one.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline.air.constants import AUTOFILLED_KEYS, TRAINING_ITERATION
from paceline.run.callbacks import Row
from paceline.run.loggers import AppendFile, FileLogger
from paceline.run.spec import Trial

_NO_CURVE = AUTOFILLED_KEYS - {"time_this_iter_s", "time_total_s"}

_file_number = itertools.count()


class TBXLoggerCallback(FileLogger["_EventFile"]):
    """Writes an event file into the trial's directory: a curve ``paceline/<metric>`` for each number."""

    def log_rows(self, trial: Trial, rows: Sequence[Row]) -> None:
        self._file(trial).add(rows)

    def log_validation(self, trial: Trial, row: Row) -> None:
        self._file(trial).add_late(row)

    def rewind(self, trial: Trial, keep: int) -> int:
        """An event file can't be cut back; the next row says which steps it replaces.

        Rows in another driver's file are not counted: all are to be sent again.
        """
        is_ours = trial.trial_id in self._files
        self._file(trial).supersede()
        return keep if is_ours else 0

    def _open(self, trial: Trial) -> _EventFile:
        return _EventFile(Path(trial.local_path))


class _EventFile(AppendFile):
    def __init__(self, directory: Path) -> None:
        now = time.time()
        # TensorBoard reads a directory's files in the order of their names.
        writer = f"{socket.gethostname()}.{os.getpid()}.{next(_file_number):06d}"  # padded: 10 comes after 9
        super().__init__(directory / f"events.out.tfevents.{int(now):010d}.{writer}")
        self._encoder = ScalarEncoder(prefix="paceline/")
        self._supersedes = False
        self.append(version_record(now))

    def supersede(self) -> None:
        self._supersedes = True

    def add(self, rows: Sequence[Row]) -> None:
        self.append(b"".join([self._records(row) for row in rows]))

    def add_late(self, row: Row) -> None:
        """Curves of their own; the row supersedes nothing, whatever comes next."""
        supersedes, self._supersedes = self._supersedes, False
        self.append(self._records(row))
        self._supersedes = supersedes

    def _records(self, row: Row) -> bytes:
        step, wall_time = row.get(TRAINING_ITERATION), row.get("timestamp")
        if type(step) is not int:
            step = row.get("_training_iteration", 0)
        if type(wall_time) is not int and type(wall_time) is not float:
            wall_time = time.time()
        names: list[str] = []
        values: list[float] = []
        _collect_numbers(row, names, values)
        record = self._encoder.record(wall_time, step, tuple(names), values) if names else b""
        if self._supersedes:
            self._supersedes = False
            return session_start_record(wall_time, step) + record
        return record


def _collect_numbers(row: Mapping[str, Any], names: list[str], values: list[float]) -> None:
    for key, value in row.items():
        kind = type(value)
        if kind is float or kind is int:
            if key not in _NO_CURVE:
                names.append(key)
                values.append(value)
        elif kind is dict and key not in _NO_CURVE:
            inner_names: list[str] = []
            _collect_numbers(value, inner_names, values)
            names += [f"{key}/{name}" for name in inner_names]


_MASK_DELTA = 0xA282EAD8
_MOST_TEMPLATES = 16
"""Sets of names that get a template. Further ones are encoded the slow way: memory stays bounded."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_pack_crc = struct.Struct("<I").pack
_pack_length = struct.Struct("<Q").pack
_pack_time = struct.Struct("<Bd").pack
_TIME_SIZE = 9


def version_record(wall_time: float) -> bytes:
    """The first record of every file."""
    return _record(_time_field(wall_time) + _bytes_field(3, b"brain.Event:2"))


def session_start_record(wall_time: float, step: int) -> bytes:
    """Says that what was written before for `step` and later steps is superseded."""
    status_start = _key(1, _VARINT) + _varint(1)
    return _record(_time_field(wall_time) + _step_field(step) + _bytes_field(7, status_start))


class ScalarEncoder:
    """Turns named numbers into records, one for all numbers of a step."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._templates: dict[tuple[tuple[str, ...], int], _Template] = {}

    def record(self, wall_time: float, step: int, names: tuple[str, ...], values: Sequence[float]) -> bytes:
        step_field = _step_field(step)
        kind = (names, len(step_field))
        template = self._templates.get(kind)
        if template is None:
            layout = _Layout([self._prefix + name for name in names], len(step_field))
            if len(self._templates) == _MOST_TEMPLATES:
                return _record(layout.payload(wall_time, step_field, values))
            template = self._templates[kind] = _Template(layout)
        return template.record(wall_time, step_field, values)


class _Layout:
    """How the events with certain tags are laid out: time, step, then (head, value) for each tag."""

    def __init__(self, tags: Sequence[str], step_size: int) -> None:
        fields = [_bytes_field(1, tag.encode(errors="replace")) + _key(2, _FIXED32) for tag in tags]
        heads = [_key(1, _BYTES) + _varint(len(field) + 4) + field for field in fields]
        heads[0] = _key(5, _BYTES) + _varint(sum(len(head) + 4 for head in heads)) + heads[0]
        self._heads_and_values: list[object] = [part for head in heads for part in (head, 0.0)]
        self._struct = struct.Struct("<" + "".join(f"{len(head)}sf" for head in heads))
        self.step_size = step_size
        self.size = _TIME_SIZE + step_size + self._struct.size
        self.value_count = len(heads)
        self.head_sizes = [len(head) for head in heads]

    def payload(self, wall_time: float, step_field: bytes, values: Sequence[float]) -> bytes:
        parts = self._heads_and_values
        parts[1::2] = values
        try:
            packed = self._struct.pack(*parts)
        except (OverflowError, struct.error):  # a number beyond 32 bits, a whole number beyond 64
            parts[1::2] = map(_within_float32, values)
            packed = self._struct.pack(*parts)
        return _time_field(wall_time) + step_field + packed


class _Template:
    """A layout with the checksum of its constant bytes, and how far each variable part is carried."""

    def __init__(self, layout: _Layout) -> None:
        self._layout = layout
        length = _pack_length(layout.size)
        self._head = length + _pack_crc(_masked_crc(length))
        front = _TIME_SIZE + layout.step_size
        constant = layout.payload(0.0, bytes(layout.step_size), [0.0] * layout.value_count)[front:]
        self._constant_crc = _crc32c(bytes(front) + constant)
        first, *later = layout.head_sizes
        self._carry_front = _carry_tables(first)
        self._carry_values = [_carry_tables(4 + size) for size in (*later, 0)]
        self._words = struct.Struct("<" + "".join(f"{size}xI" for size in layout.head_sizes)).unpack_from

    def record(self, wall_time: float, step_field: bytes, values: Sequence[float]) -> bytes:
        payload = self._layout.payload(wall_time, step_field, values)
        front = _TIME_SIZE + self._layout.step_size
        crc = 0
        for byte in payload[:front]:
            crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
        byte_0, byte_1, byte_2, byte_3 = self._carry_front
        crc = byte_0[crc & 0xFF] ^ byte_1[crc >> 8 & 0xFF] ^ byte_2[crc >> 16 & 0xFF] ^ byte_3[crc >> 24]
        for word, (byte_0, byte_1, byte_2, byte_3) in zip(self._words(payload, front), self._carry_values, strict=True):
            crc ^= word
            crc = byte_0[crc & 0xFF] ^ byte_1[crc >> 8 & 0xFF] ^ byte_2[crc >> 16 & 0xFF] ^ byte_3[crc >> 24]
        return self._head + payload + _pack_crc(_masked(crc ^ self._constant_crc))


@lru_cache(maxsize=256)
def _carry_tables(distance: int) -> tuple[list[int], ...]:
    """What each value of each of a checksum's four bytes becomes when it is carried over `distance` zero bytes."""
    tables = []
    for lowest_bit in range(0, 32, 8):
        table = [0]
        for bit in range(lowest_bit, lowest_bit + 8):
            share = 1 << bit
            for _ in range(distance):
                share = _CRC_TABLE[share & 0xFF] ^ (share >> 8)
            table += [lower ^ share for lower in table]
        tables.append(table)
    return tuple(tables)


def _record(payload: bytes) -> bytes:
    length = _pack_length(len(payload))
    return length + _pack_crc(_masked_crc(length)) + payload + _pack_crc(_masked_crc(payload))


def _masked_crc(data: bytes) -> int:
    return _masked(_crc32c(data))


def _masked(crc: int) -> int:
    """The format stores checksums rotated, so that a checksum of a checksum is not degenerate."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC_TABLE = [_crc_of_byte(byte) for byte in range(256)]


def _within_float32(value: float) -> float:
    """The value, or infinity if 32 bits can't hold it."""
    try:
        struct.pack("<f", value)
    except (OverflowError, struct.error):
        return float("inf") if value > 0 else float("-inf")
    return value


def _varint(number: int) -> bytes:
    """Protobuf's integer of variable length; a negative one takes ten bytes."""
    number &= 0xFFFFFFFFFFFFFFFF
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _key(number: int, wire_type: int) -> bytes:
    return bytes((number << 3 | wire_type,))


def _bytes_field(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _time_field(wall_time: float) -> bytes:
    return _pack_time(1 << 3 | _FIXED64, wall_time)


def _step_field(step: int) -> bytes:
    return b"\x10" + _varint(step)
