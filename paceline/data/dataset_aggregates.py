"""Dataset's methods that compute a few numbers over all rows, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from paceline.air.checks import warn_at_users_line
from paceline.data.dataset_base import DatasetBase

if TYPE_CHECKING:
    from paceline.data.aggregate import Aggregation, ColumnAggregation


class Aggregates(DatasetBase):
    """`on` is one or more columns, or None for all. One column gives a value, several give a dict {"sum(x)": value}."""

    def count(self) -> int:
        """How many rows there are; files that say so are not read for it."""
        rows = sum(self.plan.row_counts())
        skipped = self.plan.skipped()
        if skipped:
            more = f" And {len(skipped) - 1} more, see stats()." if len(skipped) > 1 else ""
            warn_at_users_line(f"count: {rows:,} rows without what could not be read. {skipped[0]}{more}")
        return rows

    def aggregate(self, *aggregations: Aggregation) -> dict[str, Any]:
        """Several aggregations in one pass: {their name: value}."""
        from paceline.data.aggregation import Aggregator, with_columns_named

        named = with_columns_named(aggregations, self.plan.schema, ())
        (row,) = Aggregator((), named).run(self.plan).to_pylist()
        return dict(row)

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The sum; None if there are no values or, with ignore_nulls=False, if there are nulls."""
        from paceline.data.aggregate import Sum

        return self._each(on, lambda name: Sum(name, ignore_nulls))

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The smallest value."""
        from paceline.data.aggregate import Min

        return self._each(on, lambda name: Min(name, ignore_nulls))

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The largest value."""
        from paceline.data.aggregate import Max

        return self._each(on, lambda name: Max(name, ignore_nulls))

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The mean."""
        from paceline.data.aggregate import Mean

        return self._each(on, lambda name: Mean(name, ignore_nulls))

    def std(self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True) -> Any:
        """The standard deviation; ddof=1 that of a sample. None for `ddof` values or fewer."""
        from paceline.data.aggregate import Std

        return self._each(on, lambda name: Std(name, ddof, ignore_nulls))

    def unique(self, column: str) -> list[Any]:
        """The different values of a column, None among them if there are nulls, in the order of their appearance."""
        from paceline.data.aggregate import Unique

        (values,) = self.aggregate(Unique(column, ignore_nulls=False)).values()
        return list(values)

    def _each(self, on: str | Sequence[str] | None, make: Callable[[str], ColumnAggregation]) -> Any:
        names = self.plan.schema().names if on is None else [on] if isinstance(on, str) else on
        values = self.aggregate(*(make(name) for name in names))
        return values if len(values) != 1 else next(iter(values.values()))
