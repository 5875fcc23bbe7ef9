"""Encoders: categories as numbers, as one column for each, or as a column of categories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.checks import check_bool, whole_number
from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessor import D, Preprocessor
from paceline.data.preprocessors.categories import CategoryPreprocessor, place_numbers
from paceline.data.preprocessors.columns import (
    check_unique,
    checked_columns,
    column_of,
    counts_per_row,
    expanded,
    with_columns,
)
from paceline.data.statistics import Statistic
from paceline.data.tensors import tensor_array
from paceline.data.value_counts import CategoryCounts, ValueCounts, as_lists, item_type, with_items

if TYPE_CHECKING:
    import pandas as pd


class OrdinalEncoder(CategoryPreprocessor):
    """Replaces each category by its place in the sorted categories: 0, 1, 2...

    Values that were not there in fitting become null (NaN in numpy and pandas). In a column of lists every
    item is replaced; with `encode_lists=False` a list as a whole is a category.
    """

    def __init__(self, columns: list[str], *, encode_lists: bool = True) -> None:
        check_bool(encode_lists, "encode_lists")
        self.columns = checked_columns(columns, "OrdinalEncoder")
        self.encode_lists = encode_lists

    def _statistics(self) -> list[Statistic]:
        return [CategoryCounts(column, whole_lists=not self.encode_lists) for column in self.columns]

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        return with_columns(chunk, {column: self._encoded(chunk, column) for column in self.columns})

    def _encoded(self, chunk: pa.RecordBatch, column: str) -> pa.Array:
        values, categories = column_of(chunk, column, "OrdinalEncoder"), self._categories(column)
        if item_type(values.type) is None or not self.encode_lists:
            return categories.places(values).cast(pa.int64())
        lists = as_lists(values)
        return with_items(lists, categories.places(pc.list_flatten(lists)).cast(pa.int64()))

    def _input_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def _output_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)


class OneHotEncoder(CategoryPreprocessor):
    """Replaces a column by one column for each category, "<column>_<category>", with 1 where it is that category.

    The new columns come last, in the order of `columns` and of the sorted categories. Values that were not there
    in fitting, and null, have 0 in all of them. `max_categories={"column": 10}` keeps only the 10 most
    frequent ones. A list as a whole is one category.
    """

    def __init__(self, columns: list[str], *, max_categories: dict[str, int] | None = None) -> None:
        self.columns = checked_columns(columns, "OneHotEncoder")
        self.max_categories = checked_limits(max_categories, self.columns, "OneHotEncoder")

    def _statistics(self) -> list[Statistic]:
        return [CategoryCounts(column, whole_lists=True) for column in self.columns]

    def _check_learnt(self, learnt: dict[str, dict[Any, int]]) -> None:
        check_unique(self._names(learnt), "OneHotEncoder")

    def _names(self, learnt: dict[str, dict[Any, int]]) -> list[str]:
        """The names of the new columns."""
        return [f"{column}_{value}" for column in self.columns for value in learnt[f"unique_values({column})"]]

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        added: list[pa.Array] = []
        for column in self.columns:
            categories = self._categories(column)
            rows, places = place_numbers(categories.places(column_of(chunk, column, "OneHotEncoder")))
            added += counts_per_row(chunk.num_rows, rows, places, len(categories))
        return expanded(chunk, self.columns, self._names(self.stats_), added, "OneHotEncoder")

    def _input_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def _output_columns(self) -> tuple[str, ...]:
        return (*self.columns, *(self._names(self.stats_) if hasattr(self, "stats_") else ()))


class MultiHotEncoder(CategoryPreprocessor):
    """Replaces each list of categories by an array with 1 for each category in the list and 0 for all others.

    The array has one element for each category, in sorted order; a column of single values is encoded as if each
    were a list of one. Items that were not there in fitting are passed over. `max_categories={"column": 10}`
    keeps only the 10 most frequent ones.
    """

    def __init__(self, columns: list[str], *, max_categories: dict[str, int] | None = None) -> None:
        self.columns = checked_columns(columns, "MultiHotEncoder")
        self.max_categories = checked_limits(max_categories, self.columns, "MultiHotEncoder")

    def _statistics(self) -> list[Statistic]:
        return [CategoryCounts(column) for column in self.columns]

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        return with_columns(chunk, {column: self._encoded(chunk, column) for column in self.columns})

    def _encoded(self, chunk: pa.RecordBatch, column: str) -> pa.Array:
        values, categories = column_of(chunk, column, "MultiHotEncoder"), self._categories(column)
        rows = np.arange(len(values))
        if item_type(values.type) is not None:
            lists = as_lists(values)
            values, rows = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()
        present, places = place_numbers(categories.places(values))
        encoded = np.zeros((chunk.num_rows, len(categories)), np.int64)
        encoded[rows[present], places] = 1
        return tensor_array(encoded)

    def _input_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def _output_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)


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
        self.columns = checked_columns(columns, "Categorizer")
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

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        return with_columns(chunk, {column: self._categorical(chunk, column) for column in self.columns})

    def _categorical(self, chunk: pa.RecordBatch, column: str) -> pa.Array:
        dtype = getattr(self, "stats_", self.dtypes or {})[column]
        values = column_of(chunk, column, "Categorizer")
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        categories = self._prepared(column, dtype, dtype.categories.tolist)
        return pa.DictionaryArray.from_arrays(
            categories.places(values), categories.as_type(kind), ordered=bool(dtype.ordered)
        )

    def _input_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def _output_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)


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

    def __init__(self, label_column: str) -> None:
        if not isinstance(label_column, str):
            raise ConfigError(f"LabelEncoder: label_column is {label_column!r}: give the name of one column.")
        self.label_column = label_column

    def inverse_transform(self, ds: D) -> D:
        """The dataset with labels again instead of their numbers in the label column; lazily."""
        self._check_fitted("inverse_transform")
        return LabelDecoder(self.label_column, self._categories(self.label_column).values).transform(ds)

    def inverse_transform_batch(self, batch: Any) -> Any:
        """A single batch with labels again; the same kind comes out."""
        self._check_fitted("inverse_transform_batch")
        return LabelDecoder(self.label_column, self._categories(self.label_column).values).transform_batch(batch)

    def _statistics(self) -> list[Statistic]:
        return [ValueCounts(self.label_column)]

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        labels = column_of(chunk, self.label_column, "LabelEncoder")
        places = self._categories(self.label_column).places(labels)
        return with_columns(chunk, {self.label_column: places.cast(pa.int64())})

    def _input_columns(self) -> tuple[str, ...]:
        return (self.label_column,)

    def _output_columns(self) -> tuple[str, ...]:
        return (self.label_column,)


class LabelDecoder(Preprocessor):
    """The way back of a LabelEncoder."""

    _is_fittable = False

    def __init__(self, label_column: str, labels: list[Any]) -> None:
        self.label_column = label_column
        self.labels = labels

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        column = column_of(chunk, self.label_column, "LabelEncoder")
        what = f"LabelEncoder: column {self.label_column!r}"
        try:
            places = column.cast(pa.int64())
        except pa.ArrowException as error:
            raise DataError(f"{what} of type {column.type} does not hold numbers of labels: {error}") from error
        smallest, largest = pc.min_max(places).as_py().values()
        if smallest is not None and (smallest < 0 or largest >= len(self.labels)):
            raise DataError(
                f"{what} holds numbers from {smallest} to {largest}; only 0 to {len(self.labels) - 1} stand for labels."
            )
        return with_columns(chunk, {self.label_column: pa.array(self.labels).take(places)})

    def _input_columns(self) -> tuple[str, ...]:
        return (self.label_column,)

    def _output_columns(self) -> tuple[str, ...]:
        return (self.label_column,)
