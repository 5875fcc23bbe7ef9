"""SimpleImputer: fills in what is missing."""

from __future__ import annotations

from numbers import Real
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.checks import check_choice
from paceline.air.errors import ConfigError, DataError
from paceline.data.aggregate import is_number_type
from paceline.data.preprocessors.columns import ColumnPreprocessor, learnt
from paceline.data.statistics import Moments, Statistic
from paceline.data.value_counts import ValueCounts


class SimpleImputer(ColumnPreprocessor):
    """Replaces missing values (null, NaN) by the column's mean, its most frequent value, or a constant.

    The most frequent of several is the smallest. With the mean, columns become floating point, whether
    or not anything is missing in them.
    """

    def __init__(self, columns: list[str], strategy: str = "mean", fill_value: Any = None) -> None:
        super().__init__(columns)
        check_choice(strategy, "SimpleImputer: strategy", ("mean", "most_frequent", "constant"))
        if (strategy == "constant") != (fill_value is not None):
            raise ConfigError(
                f"SimpleImputer: strategy is {strategy!r} and fill_value is {fill_value!r}: a fill_value belongs to "
                "strategy='constant', and only to that."
            )
        self.strategy = strategy
        self.fill_value = fill_value
        self._is_fittable = strategy != "constant"

    def _statistic(self, column: str) -> Statistic:
        return Moments(column) if self.strategy == "mean" else ValueCounts(column)

    def _learnt(self, column: str, found: Any) -> dict[str, Any]:
        value = (found and found.mean) if self.strategy == "mean" else found.most_frequent()
        if self.strategy == "mean" or value is None:
            value = learnt(value, self.strategy.replace("_", " "), column, "SimpleImputer")
        return {f"{self.strategy}({column})": value}

    def _transform_column(self, column: str, values: pa.Array) -> pa.Array:
        fill = self.fill_value if self.strategy == "constant" else self.stats_[f"{self.strategy}({column})"]
        return self._filled(values, fill, column)

    def _filled(self, values: pa.Array, fill: Any, column: str) -> pa.Array:
        kind = values.type
        if pa.types.is_dictionary(kind):
            return self._filled(values.dictionary_decode(), fill, column).cast(kind)
        target = self._type_with(kind, fill, column)
        missing = pc.is_null(values, nan_is_null=True)
        return pc.if_else(missing, pa.scalar(fill, target), values.cast(target, safe=False))

    def _type_with(self, kind: pa.DataType, fill: Any, column: str) -> pa.DataType:
        """The type of the column when it is filled. It depends on types only: all chunks must have the same."""
        if self.strategy == "mean" and not pa.types.is_floating(kind):
            if not is_number_type(kind):
                raise DataError(f"SimpleImputer: column {column!r} is of type {kind}, but a mean fills numbers only.")
            return pa.float64()
        if _fits(fill, kind):
            return kind
        wider = pa.scalar(fill).type
        if pa.types.is_null(kind) or (pa.types.is_floating(wider) and is_number_type(kind)):
            return wider
        raise DataError(f"SimpleImputer: column {column!r} is of type {kind}, which {fill!r} does not fit.")


def _fits(fill: Any, kind: pa.DataType) -> bool:
    """True if a column of this type can hold the value as it is; to be rounded to its precision does no harm."""
    if pa.types.is_floating(kind):
        return isinstance(fill, Real)
    try:
        return bool(pa.scalar(fill, kind).as_py() == fill)  # Arrow cuts off the fraction of 0.5 without a word
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
