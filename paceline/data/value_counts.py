"""Which values a column has and how often each: its values, the items of its lists, or its lists as wholes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.aggregate import Accumulator
from paceline.data.statistics import Statistic
from paceline.data.store import Scratch

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

    def start(self, key: Any, scratch: Scratch) -> Accumulator:
        return _ValueCounts()

    def refuses(self, kind: pa.DataType) -> str | None:
        return "plain values, not lists or arrays" if _is_compound(kind) else None


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


@dataclass(frozen=True)
class CategoryCounts(Statistic):
    """The categories of a column with their counts, as a ValueTable.

    A column of lists counts the items of all lists, or, with `whole_lists`, each list as one category. Only
    the data tell which kind a column is, so this is found out with the first chunk.
    """

    whole_lists: bool = False

    def start(self, key: Any, scratch: Scratch) -> Accumulator:
        return _CategoryCounts(self.whole_lists)

    def refuses(self, kind: pa.DataType) -> str | None:
        items = item_type(kind)
        return "plain values or lists of plain values" if _is_compound(kind if items is None else items) else None


def item_type(kind: pa.DataType) -> pa.DataType | None:
    """The type of the items of a column of lists, or of one-dimensional tensors; None for any other column."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return kind.value_type if len(kind.shape) == 1 else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return kind.value_type
    return None


def as_lists(values: pa.Array) -> pa.Array:
    """Lists of any kind as lists of variable length."""
    if isinstance(values.type, pa.FixedShapeTensorType):
        values = values.storage
    if pa.types.is_fixed_size_list(values.type):
        values = values.cast(pa.list_(values.type.value_type))
    return values


def with_items(lists: pa.Array, items: pa.Array) -> pa.Array:
    """Lists of the same lengths as `lists`, null where those are null, with other items."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.LargeListArray.from_arrays(pa.array(offsets), items, mask=lists.is_null() if lists.null_count else None)


def list_keys(lists: pa.Array, places: pa.Array) -> pa.Array:
    """A text for each list, equal for equal lists; `places` stands for its items. Null if one of those is null."""
    return pc.binary_join(with_items(lists, places.cast(pa.string())), ",")


class _CategoryCounts(Accumulator):
    def __init__(self, whole_lists: bool) -> None:
        self._whole_lists = whole_lists
        self._counts: Accumulator | None = None

    def add(self, values: pa.Array) -> None:
        has_lists = item_type(values.type) is not None
        if self._counts is None:
            self._counts = self._start(has_lists)
        self._counts.add(as_lists(values) if has_lists else values)

    def _start(self, has_lists: bool) -> Accumulator:
        if not has_lists:
            return _ValueCounts()
        return _ListCounts() if self._whole_lists else _ItemCounts()

    def merge(self, other: Self) -> None:
        if self._counts is None:
            self._counts = other._counts
        elif other._counts is not None:
            self._counts.merge(other._counts)

    def result(self) -> ValueTable:
        counts = self._counts or self._start(has_lists=False)
        table: ValueTable = counts.result()
        return table


class _ListCounts(Accumulator):
    """Equal lists of a chunk are found by Arrow; only the different ones become Python objects."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self._items: pa.DataType = pa.null()
        self._missing = 0

    def add(self, values: pa.Array) -> None:
        self._items = values.type.value_type
        keys = list_keys(values, pc.list_flatten(values).dictionary_encode().indices)
        self._missing += keys.null_count
        present = keys.is_valid()
        codes = keys.filter(present).dictionary_encode().indices.to_numpy()
        _, first, counts = np.unique(codes, return_index=True, return_counts=True)
        different = values.filter(present).take(pa.array(first)).to_pylist()
        for items, count in zip(different, counts.tolist(), strict=True):
            self._counts[tuple(items)] += count

    def merge(self, other: Self) -> None:
        self._counts.update(other._counts)
        self._items = other._items
        self._missing += other._missing

    def result(self) -> ValueTable:
        lists = sorted(self._counts)
        values = pa.array([list(items) for items in lists], pa.list_(self._items))
        return ValueTable(values, np.array([self._counts[items] for items in lists], np.int64), self._missing)
