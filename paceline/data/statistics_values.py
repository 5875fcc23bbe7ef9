"""Which values a column has, and how often each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.statistics import Accumulator, Statistic
from paceline.data.statistics_scratch import Scratch

WINDOW = 1 << 16
"""Integers that lie so close together are counted by position, others by hashing."""
PENDING = 1 << 16
"""So many entries are collected before they are merged."""


@dataclass(frozen=True)
class ValueTable:
    """What ValueCounts gives."""

    values: pa.Array
    """Every value once, sorted; neither null nor NaN."""
    counts: np.ndarray
    """How often each occurs."""
    missing: int
    """How many were null or NaN."""

    def most_frequent(self) -> Any:
        """The value that occurs most often, the smallest of several; None if there are no values."""
        return self.values[int(self.counts.argmax())].as_py() if len(self.values) else None


@dataclass(frozen=True)
class ValueCounts(Statistic):
    """The values of a column with their counts, as a ValueTable."""

    def start(self, scratch: Scratch) -> Accumulator:
        return _ValueCounts()

    def refuses(self, kind: pa.DataType) -> str | None:
        return "plain values, not lists or arrays" if _is_compound(kind) else None


@dataclass(frozen=True)
class ItemCounts(Statistic):
    """The items of a column of lists with their counts, as a ValueTable; `missing` counts lists and items alike."""

    def start(self, scratch: Scratch) -> Accumulator:
        return _ItemCounts()

    def refuses(self, kind: pa.DataType) -> str | None:
        if pa.types.is_null(kind) or (_is_list(kind) and not _is_compound(kind.value_type)):
            return None
        return "lists of plain values"


@dataclass(frozen=True)
class MostFrequent(Statistic):
    """The value that occurs most often, the smallest of several; None if there are no values."""

    @property
    def measured(self) -> Statistic:
        return ValueCounts(self.column)

    def of(self, value: ValueTable) -> Any:
        return value.most_frequent()

    def refuses(self, kind: pa.DataType) -> str | None:
        return self.measured.refuses(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_compound(kind: pa.DataType) -> bool:
    return pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType)


class _ValueCounts(Accumulator):
    """Integers near each other are counted in a window of an array, which is several times faster than hashing."""

    def __init__(self) -> None:
        self._type: pa.DataType | None = None
        self._missing = 0
        self._hashed = _Hashed()
        self._window: np.ndarray | None = None
        self._low = 0

    def add(self, values: pa.Array) -> None:
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        self._type = values.type
        if values.null_count:
            self._missing += values.null_count
            values = values.drop_null()
        if pa.types.is_floating(values.type):
            present = values.filter(pc.invert(pc.is_nan(values)))
            self._missing += len(values) - len(present)
            values = present
        if not len(values):
            return
        if not (pa.types.is_integer(values.type) and self._count_by_position(values.to_numpy())):
            found = pc.value_counts(values)
            self._hashed.add(found.field("values"), found.field("counts").to_numpy())

    def _count_by_position(self, numbers: np.ndarray) -> bool:
        low, high = int(numbers.min()), int(numbers.max())
        if high - low >= WINDOW:
            return False
        if low < 0 or high >= WINDOW:
            wide = numbers if numbers.dtype.itemsize == 8 else numbers.astype(np.int64)
            counts = np.bincount((wide - wide.dtype.type(low)).astype(np.intp, copy=False))
        else:  # spares the subtraction for what is most frequent: small codes from 0 on
            counts = np.bincount(numbers.astype(np.intp, copy=False))
            low = 0
        self._add_window(low, counts)
        return True

    def _add_window(self, low: int, counts: np.ndarray) -> None:
        if self._window is None:
            self._low, self._window = low, counts
            return
        start, stop = min(low, self._low), max(low + len(counts), self._low + len(self._window))
        if stop - start > 2 * WINDOW:
            self._close_window()
            self._low, self._window = low, counts
            return
        if (start, stop) != (self._low, self._low + len(self._window)):
            wider = np.zeros(stop - start, np.int64)
            wider[self._low - start : self._low - start + len(self._window)] = self._window
            self._low, self._window = start, wider
        self._window[low - start : low - start + len(counts)] += counts

    def _close_window(self) -> None:
        """What was counted by position goes where everything else is."""
        if self._window is None:
            return
        (places,) = self._window.nonzero()
        if len(places):
            assert self._type is not None
            wide = np.uint64 if pa.types.is_unsigned_integer(self._type) else np.int64
            numbers = places.astype(wide) + wide(self._low)
            self._hashed.add(pa.array(numbers).cast(self._type), self._window[places])
        self._window = None

    def merge(self, other: Self) -> None:
        self._missing += other._missing
        if other._type is None:
            return
        self._type = other._type
        if other._window is not None:
            self._add_window(other._low, other._window)
        self._hashed.merge(other._hashed)

    def result(self) -> ValueTable:
        self._close_window()
        values, counts = self._hashed.combined(self._type or pa.null())
        order = pc.sort_indices(values)
        return ValueTable(values.take(order), counts[order.to_numpy()], self._missing)


class _ItemCounts(_ValueCounts):
    def add(self, values: pa.Array) -> None:
        self._missing += values.null_count
        if not pa.types.is_null(values.type):
            super().add(pc.list_flatten(values))


class _Hashed:
    """Values with counts, where a value may occur in several entries until they are combined."""

    def __init__(self) -> None:
        self._values: list[pa.Array] = []
        self._counts: list[np.ndarray] = []
        self._pending = 0
        self._combined = 0
        """Of the pending entries, how many are known to be different."""

    def add(self, values: pa.Array, counts: np.ndarray) -> None:
        self._values.append(values)
        self._counts.append(counts)
        self._pending += len(values)
        if self._pending > PENDING + 2 * self._combined:
            self._combine()

    def merge(self, other: _Hashed) -> None:
        for values, counts in zip(other._values, other._counts, strict=True):
            self.add(values, counts)

    def _combine(self) -> None:
        joined = pa.concat_arrays(self._values).dictionary_encode()
        counts = np.zeros(len(joined.dictionary), np.int64)
        np.add.at(counts, joined.indices.to_numpy(), np.concatenate(self._counts))
        self._values, self._counts = [joined.dictionary], [counts]
        self._pending = self._combined = len(counts)

    def combined(self, kind: pa.DataType) -> tuple[pa.Array, np.ndarray]:
        if not self._values:
            return pa.array([], kind), np.zeros(0, np.int64)
        if len(self._values) > 1:
            self._combine()
        return self._values[0], self._counts[0]
