"""Encoders: categories as numbers, as one column for each, or as a column of categories.

`Categories` finds where values stand among the categories of a column.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.checks import check_bool, whole_number
from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessor import D
from paceline.data.preprocessors.columns import (
    ColumnPreprocessor,
    ExpandingPreprocessor,
    column_of,
    counts_per_row,
    place_numbers,
)
from paceline.data.statistics import Statistic
from paceline.data.tensors import tensor_array
from paceline.data.value_counts import (
    CategoryCounts,
    ValueCounts,
    ValueTable,
    as_lists,
    item_type,
    list_keys,
    with_items,
)

if TYPE_CHECKING:
    import pandas as pd

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


class CategoryPreprocessor(ColumnPreprocessor):
    """Keeps what it learnt as {category: place} in `stats_["unique_values(<column>)"]`."""

    max_categories: dict[str, int] | None = None

    def _learnt(self, column: str, found: ValueTable) -> dict[str, Any]:
        most = (self.max_categories or {}).get(column)
        what = f"{type(self).__name__}: column {column!r}"
        return {f"unique_values({column})": learnt_categories(found, what, most)}

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


class OrdinalEncoder(CategoryPreprocessor):
    """Replaces each category by its place in the sorted categories: 0, 1, 2...

    Values that were not there in fitting become null (NaN in numpy and pandas). In a column of lists every
    item is replaced; with `encode_lists=False` a list as a whole is a category.
    """

    def __init__(self, columns: list[str], *, encode_lists: bool = True) -> None:
        check_bool(encode_lists, "encode_lists")
        super().__init__(columns)
        self.encode_lists = encode_lists

    def _statistic(self, column: str) -> Statistic:
        return CategoryCounts(column, whole_lists=not self.encode_lists)

    def _transform_column(self, column: str, values: pa.Array) -> pa.Array:
        categories = self._categories(column)
        if item_type(values.type) is None or not self.encode_lists:
            return categories.places(values).cast(pa.int64())
        lists = as_lists(values)
        return with_items(lists, categories.places(pc.list_flatten(lists)).cast(pa.int64()))


class OneHotEncoder(CategoryPreprocessor, ExpandingPreprocessor):
    """Replaces a column by one column for each category, "<column>_<category>", with 1 where it is that category.

    The new columns come last, in the order of `columns` and of the sorted categories. Values that were not there
    in fitting, and null, have 0 in all of them. `max_categories={"column": 10}` keeps only the 10 most
    frequent ones. A list as a whole is one category.
    """

    def __init__(self, columns: list[str], *, max_categories: dict[str, int] | None = None) -> None:
        super().__init__(columns)
        self.max_categories = checked_limits(max_categories, self.columns, "OneHotEncoder")

    def _statistic(self, column: str) -> Statistic:
        return CategoryCounts(column, whole_lists=True)

    def _new_names(self, learnt: dict[str, Any]) -> list[str]:
        return [f"{column}_{value}" for column in self.columns for value in learnt.get(f"unique_values({column})", ())]

    def _expanded(self, column: str, values: pa.Array) -> list[pa.Array]:
        categories = self._categories(column)
        rows, places = place_numbers(categories.places(values))
        return counts_per_row(len(values), rows, places, len(categories))


class MultiHotEncoder(CategoryPreprocessor):
    """Replaces each list of categories by an array with 1 for each category in the list and 0 for all others.

    The array has one element for each category, in sorted order; a column of single values is encoded as if each
    were a list of one. Items that were not there in fitting are passed over. `max_categories={"column": 10}`
    keeps only the 10 most frequent ones.
    """

    _kind_of_statistic = CategoryCounts

    def __init__(self, columns: list[str], *, max_categories: dict[str, int] | None = None) -> None:
        super().__init__(columns)
        self.max_categories = checked_limits(max_categories, self.columns, "MultiHotEncoder")

    def _transform_column(self, column: str, values: pa.Array) -> pa.Array:
        categories = self._categories(column)
        count = len(values)
        rows = np.arange(count)
        if item_type(values.type) is not None:
            lists = as_lists(values)
            values, rows = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()
        present, places = place_numbers(categories.places(values))
        encoded = np.zeros((count, len(categories)), np.int64)
        encoded[rows[present], places] = 1
        return tensor_array(encoded)


def checked_limits(limits: Any, columns: list[str], what: str) -> dict[str, int] | None:
    """The argument `max_categories`."""
    if limits is None:
        return None
    if not isinstance(limits, Mapping):
        raise ConfigError(f"{what}: max_categories is {limits!r}: give a dict, such as {{{columns[0]!r}: 10}}.")
    for column in limits:
        if column not in columns:
            raise ConfigError(f"{what}: max_categories names {column!r}, which is not one of its columns {columns}.")
    return {
        column: whole_number(limit, f"{what}: max_categories[{column!r}]", least=1) for column, limit in limits.items()
    }


class Categorizer(CategoryPreprocessor):
    """Turns columns into pandas' categorical type (an Arrow dictionary), with the same categories everywhere.

    `dtypes` gives the `pandas.CategoricalDtype` of some columns; for the others the sorted values of the
    dataset are learnt. Null stays null; values that are no category become null.
    """

    def __init__(self, columns: list[str], dtypes: dict[str, pd.CategoricalDtype] | None = None) -> None:
        super().__init__(columns)
        self.dtypes = _checked_dtypes(dtypes, self.columns)
        self._is_fittable = bool(self._columns_to_learn())

    def _columns_to_learn(self) -> list[str]:
        known = {column for column, dtype in (self.dtypes or {}).items() if dtype.categories is not None}
        return [column for column in self.columns if column not in known]

    def _statistics(self) -> list[Statistic]:
        return [ValueCounts(column) for column in self._columns_to_learn()]

    def _learn(self, values: dict[Statistic, Any]) -> None:
        import pandas as pd

        given = self.dtypes or {}
        self.stats_ = dict(given)
        for statistic, table in values.items():
            ordered = given[statistic.column].ordered if statistic.column in given else False
            self.stats_[statistic.column] = pd.CategoricalDtype(table.values.to_pylist(), ordered)

    def _transform_column(self, column: str, values: pa.Array) -> pa.Array:
        dtype = getattr(self, "stats_", self.dtypes or {})[column]
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        categories = self._prepared(column, dtype, dtype.categories.tolist)
        return pa.DictionaryArray.from_arrays(
            categories.places(values), categories.as_type(kind), ordered=bool(dtype.ordered)
        )


def _checked_dtypes(dtypes: Any, columns: list[str]) -> dict[str, pd.CategoricalDtype] | None:
    import pandas as pd

    if dtypes is None:
        return None
    if not isinstance(dtypes, Mapping) or not all(isinstance(dtype, pd.CategoricalDtype) for dtype in dtypes.values()):
        raise ConfigError(f"Categorizer: dtypes is {dtypes!r}: give a dict of column names to pandas.CategoricalDtype.")
    for column in dtypes:
        if column not in columns:
            raise ConfigError(f"Categorizer: dtypes names {column!r}, which is not one of its columns {columns}.")
    return dict(dtypes)


class LabelEncoder(CategoryPreprocessor):
    """Replaces each label by its place in the sorted labels: 0, 1, 2...

    Labels that were not there in fitting become null (NaN in numpy and pandas).
    """

    _kind_of_statistic = ValueCounts

    def __init__(self, label_column: str) -> None:
        if not isinstance(label_column, str):
            raise ConfigError(f"LabelEncoder: label_column is {label_column!r}: give the name of one column.")
        super().__init__([label_column])
        self.label_column = label_column

    def inverse_transform(self, ds: D) -> D:
        """The dataset with labels again instead of their numbers in the label column; lazily."""
        return self._decoder("inverse_transform").transform(ds)

    def inverse_transform_batch(self, batch: Any) -> Any:
        """A single batch with labels again; the same kind comes out."""
        return self._decoder("inverse_transform_batch").transform_batch(batch)

    def _decoder(self, method: str) -> LabelDecoder:
        self._check_fitted(method)
        return LabelDecoder(self.label_column, self._categories(self.label_column).values)

    def _transform_column(self, column: str, values: pa.Array) -> pa.Array:
        return self._categories(column).places(values).cast(pa.int64())


class LabelDecoder(ColumnPreprocessor):
    """The way back of a LabelEncoder."""

    _is_fittable = False

    def __init__(self, label_column: str, labels: list[Any]) -> None:
        super().__init__([label_column])
        self.label_column = label_column
        self.labels = labels

    def _of(self, chunk: pa.RecordBatch, column: str) -> pa.Array:
        return column_of(chunk, column, "LabelEncoder")  # the name that users know

    def _transform_column(self, column: str, values: pa.Array) -> pa.Array:
        what = f"LabelEncoder: column {column!r}"
        try:
            places = values.cast(pa.int64())
        except pa.ArrowException as error:
            raise DataError(f"{what} of type {values.type} does not hold numbers of labels: {error}") from error
        smallest, largest = pc.min_max(places).as_py().values()
        if smallest is not None and (smallest < 0 or largest >= len(self.labels)):
            raise DataError(
                f"{what} holds numbers from {smallest} to {largest}; only 0 to {len(self.labels) - 1} stand for labels."
            )
        return pa.array(self.labels).take(places)
