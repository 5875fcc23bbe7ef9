"""Categorizer: columns of categories in the form that pandas and tree libraries know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paceline.air.errors import ConfigError
from paceline.data.preprocessors.categories import CategoryPreprocessor
from paceline.data.preprocessors.columns import checked_columns, column_of, with_columns
from paceline.data.statistics import Statistic
from paceline.data.statistics_values import ValueCounts

if TYPE_CHECKING:
    import pandas as pd


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
