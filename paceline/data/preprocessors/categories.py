"""Where values stand among the categories of a column."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.errors import DataError
from paceline.data.preprocessor import Preprocessor
from paceline.data.statistics import Statistic
from paceline.data.value_counts import ValueTable, as_lists, item_type, list_keys

_SIMPLE_KINDS: tuple[tuple[str, Any, tuple[type, ...]], ...] = (
    ("truth values", pa.types.is_boolean, (bool,)),
    ("numbers", lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind), (int, float)),
    ("decimals", pa.types.is_decimal, (Decimal,)),
    ("text", lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), (str,)),
    ("times", pa.types.is_temporal, (datetime.date, datetime.time, datetime.timedelta)),
)


class Categories:
    """The categories of one column, in order. Lists are categories as tuples."""

    def __init__(self, values: Iterable[Any], what: str) -> None:
        self.values = list(values)
        self._what = what
        """Begins error messages: the preprocessor and the column."""
        self._by_type: dict[pa.DataType, pa.Array] = {}

    def __len__(self) -> int:
        return len(self.values)

    def places(self, values: pa.Array) -> pa.Array:
        """The place of each value among the categories; null where a value is null or no category."""
        if item_type(values.type) is not None:
            return self._places_of_lists(as_lists(values))
        if pa.types.is_dictionary(values.type):
            return self.places(values.dictionary).take(values.indices)
        if pa.types.is_null(values.type) or not self.values:
            return pa.nulls(len(values), pa.int32())
        if pa.types.is_string_view(values.type):
            values = values.cast(pa.large_string())
        ordered = self.as_type(values.type)
        return pc.index_in(values.cast(ordered.type), value_set=ordered)

    def as_type(self, kind: pa.DataType) -> pa.Array:
        """The categories as an array of this type, or of one that all its values can be compared in."""
        if kind not in self._by_type:
            self._by_type[kind] = self._converted(kind)
        return self._by_type[kind]

    def _converted(self, kind: pa.DataType) -> pa.Array:
        if pa.types.is_null(kind):
            return pa.array(self.values)
        self._check_kind(kind)
        if pa.types.is_floating(kind) or any(isinstance(value, float) for value in self.values):
            return pa.array([float(value) for value in self.values])  # Arrow would cut fractions off without a word
        try:
            return pa.array(self.values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            if pa.types.is_integer(kind):  # not all categories fit
                return pa.array(self.values, pa.int64())
            raise self._mismatch(str(kind)) from error

    def _check_kind(self, kind: pa.DataType) -> None:
        for name, has_kind, python_types in _SIMPLE_KINDS:
            if has_kind(kind):
                excluded = bool if name == "numbers" else ()  # to Python, True is an integer
                fits = [isinstance(value, python_types) and not isinstance(value, excluded) for value in self.values]
                if not all(fits):
                    raise self._mismatch(name)

    def _mismatch(self, found: str) -> DataError:
        return DataError(
            f"{self._what} holds {found}, but the categories are like {self.values[0]!r}. "
            "Transform data of the type that the preprocessor was fitted on."
        )

    # -- lists as wholes --------------------------------------------------------------------

    def _places_of_lists(self, lists: pa.Array) -> pa.Array:
        """Lists are compared by the places of their items, which Arrow can join to a key for each list."""
        items, keys = self._items_and_keys
        found = list_keys(lists, items.places(pc.list_flatten(lists)))
        return pc.index_in(found, value_set=keys)

    @functools.cached_property
    def _items_and_keys(self) -> tuple[Categories, pa.Array]:
        if not all(isinstance(value, tuple) for value in self.values):
            raise self._mismatch("lists")
        items = Categories(dict.fromkeys(item for value in self.values for item in value), self._what)
        place = {item: str(at) for at, item in enumerate(items.values)}
        return items, pa.array([",".join(place[item] for item in value) for value in self.values], pa.string())


class CategoryPreprocessor(Preprocessor):
    """Keeps what it learnt as {category: place} in `stats_["unique_values(<column>)"]`."""

    max_categories: dict[str, int] | None = None

    def _learn(self, values: dict[Statistic, Any]) -> None:
        learnt = {}
        for statistic in self._statistics():
            what = f"{type(self).__name__}: column {statistic.column!r}"
            most = (self.max_categories or {}).get(statistic.column)
            learnt[f"unique_values({statistic.column})"] = learnt_categories(values[statistic], what, most)
        self._check_learnt(learnt)
        self.stats_ = learnt

    def _check_learnt(self, learnt: dict[str, dict[Any, int]]) -> None:
        """Refuse what cannot be used, before it replaces what was learnt earlier."""

    def _categories(self, column: str) -> Categories:
        """What was learnt, ready for looking up."""
        learnt = self.stats_[f"unique_values({column})"]
        return self._prepared(column, learnt, lambda: list(learnt))

    def _prepared(self, column: str, learnt: Any, ordered: Callable[[], list[Any]]) -> Categories:
        """Categories for looking up, made once for what is learnt now."""
        cache: dict[str, tuple[Any, Categories]] = vars(self).setdefault("_cache", {})
        known = cache.get(column)
        if known is None or known[0] is not learnt:
            known = cache[column] = (learnt, Categories(ordered(), f"{type(self).__name__}: column {column!r}"))
        return known[1]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_cache"}


def learnt_categories(table: ValueTable, what: str, most: int | None = None) -> dict[Any, int]:
    """The places of the `most` frequent values of a column, or of all, in sorted order."""
    if table.missing:
        raise DataError(
            f"{what} has {table.missing:,} missing values (null or NaN), which are no category. Fill them first, for "
            'example by SimpleImputer(columns, strategy="most_frequent") or strategy="constant", before this '
            "preprocessor in a Chain."
        )
    if not len(table.values):
        raise DataError(f"{what} has no values to learn from: the dataset is empty.")
    chosen = np.arange(len(table.values))
    if most is not None and most < len(chosen):
        chosen = np.sort(np.argsort(-table.counts, kind="stable")[:most])
    values = table.values.take(pa.array(chosen)).to_pylist()
    return {tuple(value) if isinstance(value, list) else value: place for place, value in enumerate(values)}


def place_numbers(places: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The entries that have a place, and the place of each."""
    numbers = places.fill_null(-1).to_numpy()
    (present,) = np.nonzero(numbers >= 0)
    return present, numbers[present].astype(np.int64)
