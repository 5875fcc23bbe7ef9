"""What goes into a matrix beside the features: labels, weights, queries, margins, bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from paceline.air.errors import DataError
from paceline.data.column_arrays import contiguous
from paceline.train.xgboost.features import is_categorical, vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

BESIDE = ("weight", "base_margin", "label_lower_bound", "label_upper_bound", "qid")
"""Entries of dmatrix_params that name a column with a value for each row."""

_PROBABILITIES = ("binary:logistic", "binary:logitraw", "binary:hinge", "reg:logistic")


class RowValues:
    """Takes the columns that are no features out of the rows of a dataset; rows come in order, in one table or several.

    XGBoost wants queries as numbers that never fall, and one weight per query: rows of a query are numbered here as
    they come, whatever the column holds.
    """

    def __init__(self, label_column: str, entries: Mapping[str, Any], where: str, objective: Any = None) -> None:
        self._columns = {"label": label_column, **{name: entries[name] for name in BESIDE if name in entries}}
        self._where = where
        self._objective = objective
        self.restart()

    @property
    def names(self) -> set[str]:
        """The columns that are taken."""
        return set(self._columns.values())

    def restart(self) -> None:
        """The rows come once more, from the first one."""
        self._queries = 0
        self._last_query: Any = None

    def of(self, table: pa.Table) -> dict[str, NDArray[Any]]:
        """As keyword arguments of a matrix."""
        missing = [column for column in self._columns.values() if column not in table.column_names]
        if missing:
            raise DataError(
                f"{self._where} has no column {', '.join(map(repr, missing))}; it has {', '.join(table.column_names)}."
            )
        queries = self._columns.get("qid")
        values = {
            name: self._numbers(contiguous(table.column(column)), name, column)
            for name, column in self._columns.items()
            if name != "qid"
        }
        if queries is None:
            return values
        numbers = self._numbered(contiguous(table.column(queries)))
        if "weight" in values:
            values["weight"] = self._per_query(values["weight"], numbers)
        return {**values, "qid": numbers}

    def _numbers(self, column: pa.Array, name: str, column_name: str) -> NDArray[Any]:
        told = f"{self._where}: column {column_name!r} ({'label_column' if name == 'label' else name})"
        if is_categorical(column.type):
            raise DataError(
                f"{told} holds text, not numbers. A LabelEncoder of paceline.data.preprocessors numbers its values."
            )
        if column.null_count:
            raise DataError(f"{told} has {column.null_count:,} missing value(s). Drop those rows with filter().")
        matrix = vectors(column, column_name, self._where)
        if matrix is not None:
            return matrix
        if pt.is_decimal(column.type) or pt.is_boolean(column.type):
            column = pc.cast(column, pa.float64() if pt.is_decimal(column.type) else pa.int8())
        if not (pt.is_integer(column.type) or pt.is_floating(column.type)):
            raise DataError(f"{told} is of type {column.type}, not a number.")
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        if name in ("label", "weight") and not np.isfinite(values).all():
            raise DataError(f"{told} has values that are not finite (NaN or infinity).")
        if name == "weight" and (values < 0).any():
            raise DataError(f"{told} has negative values. Weights are 0 or more.")
        if name == "label" and self._objective in _PROBABILITIES and not ((values >= 0) & (values <= 1)).all():
            raise DataError(
                f"{told} has values from {values.min():g} to {values.max():g}: objective={self._objective!r} takes "
                "those from 0 to 1. A LabelEncoder of paceline.data.preprocessors numbers classes from 0; for more "
                "than two there is objective='multi:softprob'."
            )
        return values

    def _numbered(self, column: pa.Array) -> NDArray[Any]:
        """The query of each row as a number, counted from the first row of this pass."""
        if column.null_count:
            raise DataError(f"{self._where}: column {self._columns['qid']!r} (qid) has missing values.")
        encoded = column if pt.is_dictionary(column.type) else column.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        if not len(codes):
            return np.zeros(0, np.uint32)
        begins = np.diff(codes, prepend=codes[0]) != 0
        begins[0] = self._queries == 0 or column[0].as_py() != self._last_query
        numbers = self._queries - 1 + np.cumsum(begins)
        self._queries, self._last_query = int(numbers[-1]) + 1, column[-1].as_py()
        return numbers.astype(np.uint32)

    def _per_query(self, weights: NDArray[Any], numbers: NDArray[Any]) -> NDArray[Any]:
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        chosen = weights[begins]
        if not np.array_equal(np.repeat(chosen, np.diff([*begins, len(numbers)])), weights):
            raise DataError(
                f"{self._where}: XGBoost weighs whole queries, so all rows of a query need one weight; column "
                f"{self._columns['weight']!r} differs within a query."
            )
        return chosen
