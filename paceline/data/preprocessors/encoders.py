"""Encoders: categories as numbers or as one column for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.checks import check_bool, whole_number
from paceline.air.errors import ConfigError
from paceline.data.preprocessors.categories import CategoryPreprocessor, place_numbers
from paceline.data.preprocessors.columns import checked_columns, column_of, with_columns
from paceline.data.preprocessors.expansion import check_unique, counts_per_row, expanded
from paceline.data.statistics import Statistic
from paceline.data.statistics_categories import CategoryCounts, as_lists, item_type, with_items
from paceline.data.tensors import tensor_array


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
