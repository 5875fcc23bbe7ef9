"""Which categories a column has: its values, the items of its lists, or its lists as wholes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.statistics import Accumulator, Statistic
from paceline.data.statistics_scratch import Scratch
from paceline.data.statistics_values import ItemCounts, ValueCounts, ValueTable


@dataclass(frozen=True)
class CategoryCounts(Statistic):
    """The categories of a column with their counts, as a ValueTable.

    A column of lists counts the items of all lists, or, with `whole_lists`, each list as one category. Only
    the data tell which kind a column is, so this is found out with the first chunk.
    """

    whole_lists: bool = False

    def start(self, scratch: Scratch) -> Accumulator:
        return _CategoryCounts(self, scratch)

    def refuses(self, kind: pa.DataType) -> str | None:
        items = item_type(kind)
        plain = kind if items is None else items
        if pa.types.is_nested(plain) or isinstance(plain, pa.BaseExtensionType):
            return "plain values or lists of plain values"
        return None


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
    def __init__(self, statistic: CategoryCounts, scratch: Scratch) -> None:
        self._statistic = statistic
        self._scratch = scratch
        self._counts: Accumulator | None = None

    def add(self, values: pa.Array) -> None:
        has_lists = item_type(values.type) is not None
        if self._counts is None:
            self._counts = self._start(has_lists)
        self._counts.add(as_lists(values) if has_lists else values)

    def _start(self, has_lists: bool) -> Accumulator:
        if not has_lists:
            return ValueCounts(self._statistic.column).start(self._scratch)
        if self._statistic.whole_lists:
            return _ListCounts()
        return ItemCounts(self._statistic.column).start(self._scratch)

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
