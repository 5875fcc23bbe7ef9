"""The numbers of many rows as columns: one float64 array per metric, which can grow and be cut.

NaN means that a row does not have the metric. What was reported, but is not finite, is infinity: NaN as well as both
infinities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Part = tuple[str, Floats, NDArray[np.intp] | None]
"""A name with its values, and their places among some rows; None: all of them."""

NOT_FINITE = float(np.finfo(np.float64).max)
"""Stands for NaN and infinities in rows; nobody reports the largest of all numbers."""
_MOST_NAMES = 5_000
"""Metrics of one run that are told apart; nobody could look at more."""
_NUMBERS = frozenset([int, float])


class Column:
    """A float64 array that grows. What was handed out never changes: appending writes behind it, cutting and
    changing copy."""

    def __init__(self, values: Floats) -> None:
        self._values = values
        self._size = values.size

    def view(self) -> Floats:
        return self._values[: self._size]

    def extend_to(self, size: int, expected: int = 0) -> Floats:
        """Add NaN up to a size; the new part, to be filled. `expected` is the size that it will have soon."""
        if size > self._values.size:
            grown = np.empty(max(size, expected, self._size * 3 // 2, 16))
            grown[: self._size] = self.view()
            self._values = grown
        added = self._values[self._size : size]
        added[:] = np.nan
        self._size = size
        return added

    def cut(self, size: int) -> None:
        self._values = self._values[:size].copy()
        self._size = size

    def put(self, changes: Iterable[tuple[int, float]]) -> None:
        """Change values that are there."""
        self._values = self._values.copy()
        for place, value in changes:
            self._values[place] = value


class ColumnTable:
    """Columns of equal length. Those for which there is no room are only named, in `left_out`."""

    def __init__(self, most_bytes: int, columns: Mapping[str, Floats] | None = None, rows: int = 0) -> None:
        self._most_bytes = most_bytes
        self._columns = {name: Column(values) for name, values in (columns or {}).items()}
        self.rows = rows
        self.expected = 0
        """How many rows there will be soon. Room for all of them at once costs less than growing again and again."""
        self.left_out: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def names(self) -> list[str]:
        """Of all columns, in the order in which they appeared; those without values last."""
        return [*self._columns, *self.left_out]

    def column(self, name: str) -> Floats:
        """The values of a column; KeyError if it is not held."""
        return self._columns[name].view()

    def columns(self) -> dict[str, Floats]:
        return {name: column.view() for name, column in self._columns.items()}

    def append(self, size: int, parts: Iterable[Part]) -> None:
        """Add `size` rows: what is not in one of the parts is NaN."""
        start, self.rows = self.rows, self.rows + size
        for column in self._columns.values():
            column.extend_to(self.rows, self.expected)
        for name, values, places in parts:
            target = self._columns.get(name) or self._new(name)
            if target is not None:
                target.view()[start:][slice(None) if places is None else places] = values

    def cut(self, rows: int) -> None:
        """Keep only the first rows."""
        self.rows = rows
        for column in self._columns.values():
            column.cut(rows)

    def put(self, changes: Mapping[str, Iterable[tuple[int, float]]]) -> None:
        """Change values of rows that are there: by column, the places and the new values."""
        for name, values in changes.items():
            target = self._columns.get(name) or self._new(name)
            if target is not None:
                target.put(values)

    def _new(self, name: str) -> Column | None:
        if name not in self.left_out and len(self._columns) < self._most_columns():
            column = self._columns[name] = Column(np.empty(0))
            column.extend_to(self.rows, self.expected)
            return column
        if len(self._columns) + len(self.left_out) < _MOST_NAMES:
            self.left_out[name] = None
        return None

    def _most_columns(self) -> int:
        return max(min(self._most_bytes // (8 * max(self.rows, self.expected, 1)), _MOST_NAMES), 1)


def number_parts(rows: Sequence[dict[str, Any]]) -> list[Part]:
    """The numbers in the metrics of some rows, column by column; nested ones are named "a/b"."""
    if not rows:
        return []
    orders = list(map(tuple, rows))  # of keys
    if orders.count(orders[0]) == len(orders):  # the usual rows
        return _parts_of(orders[0], [row.values() for row in rows], None)
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, order in enumerate(orders):
        groups.setdefault(order, []).append(place)
    return [
        part
        for names, places in groups.items()
        for part in _parts_of(names, [rows[place].values() for place in places], np.array(places))
    ]


def _parts_of(names: Sequence[str], rows: list[Any], places: NDArray[np.intp] | None) -> list[Part]:
    """The same for rows that have the same keys in the same order, given by their values."""
    flat = list(chain.from_iterable(rows))
    if set(map(type, flat)) <= _NUMBERS:
        table = _as_floats(flat).reshape(len(rows), len(names)).T
        return [(name, values, places) for name, values in zip(names, table, strict=True)]
    parts: list[Part] = []
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        kinds = set(map(type, values))
        if kinds & _NUMBERS:  # sometimes a number, sometimes none, text or a truth value
            inner = [place for place, value in enumerate(values) if type(value) in _NUMBERS]
            where = np.array(inner) if places is None else places[inner]
            parts.append((name, _as_floats([values[place] for place in inner]), where))
        if dict in kinds:
            inner = [place for place, value in enumerate(values) if type(value) is dict]
            where = np.array(inner) if places is None else places[inner]
            for path, found, within in number_parts([values[place] for place in inner]):
                parts.append((f"{name}/{path}", found, where if within is None else where[within]))
    return parts


def _as_floats(values: Sequence[Any]) -> Floats:
    try:
        floats = np.array(values, np.float64)
    except OverflowError:  # an integer of some hundred digits
        floats = np.array([value if abs(value) < NOT_FINITE else NOT_FINITE for value in values], np.float64)
    return reported(floats)


def reported(values: Floats) -> Floats:
    """Values that were reported: what is not finite is infinity."""
    odd = ~(np.abs(values) < NOT_FINITE)
    return np.where(odd, np.inf, values) if odd.any() else values
