"""What a preprocessor wants to know of a column, found out in one pass with whatever else is wanted.

Here: the pass (`compute`), and statistics of numbers. Missing values (null, NaN) are left out, as scikit-learn does.
Exact quantiles are in `quantiles.py`, counts of values and categories in `value_counts.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from paceline.air.errors import DataError
from paceline.data.aggregate import Accumulated, Accumulator, is_number_type
from paceline.data.aggregation import Accumulators, accumulated
from paceline.data.scratch import Scratch

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.plan import Plan

SLICE_ROWS = 32_768
"""Numbers are worked on in portions that stay in a core's cache."""
CENTER_ROWS = 64


@dataclass(frozen=True)
class Statistic(Accumulated):
    """What is wanted of one column. Equal ones are computed once."""

    column: str

    @property
    def name(self) -> str:  # type: ignore[override]  # users name their aggregates; ours derive it
        return f"{type(self).__name__}({self.column})"

    def seen_in(self, rows: Chunk) -> pa.Array:
        return rows.column(self.column)

    def refuses(self, kind: pa.DataType) -> str | None:
        """What the column should hold instead, if it cannot be of this type; None: it can."""
        return None


def compute(plan: Plan, statistics: Iterable[Statistic], what: str = "Statistics") -> dict[Statistic, Any]:
    """The values of all statistics, in one pass that reads only the columns they need.

    `what` begins error messages: the name of the preprocessor.
    """
    wanted = list(dict.fromkeys(statistics))
    if not wanted:
        return {}
    check_columns(plan.schema(), wanted, what)
    columns = tuple(dict.fromkeys(statistic.column for statistic in wanted))
    with Scratch() as scratch:
        found = accumulated(plan, lambda: Accumulators((), wanted, scratch), columns)
        return dict(zip(wanted, found.results(()), strict=True))


def check_columns(schema: pa.Schema, statistics: Sequence[Statistic], what: str) -> None:
    """Refuse columns that are not there or of a type that has no such statistic, before anything is read."""
    kinds = dict(zip(schema.names, schema.types, strict=True))
    for statistic in statistics:
        if statistic.column not in kinds:
            raise DataError(f"{what}: there is no column {statistic.column!r}; the columns are {schema.names}.")
        kind = kinds[statistic.column]
        needed = statistic.refuses(kind)
        if needed is not None:
            raise DataError(f"{what}: column {statistic.column!r} is of type {kind}, but must hold {needed}.")


def numbers_of(values: pa.Array) -> np.ndarray:
    """The numbers that are not null as numpy, in their own type where numpy has it. NaN may be among them."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count:
        values = values.drop_null()
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    elif pa.types.is_decimal(values.type) or pa.types.is_null(values.type):
        values = values.cast(pa.float64())
    numbers: np.ndarray = values.to_numpy(zero_copy_only=True)
    return numbers


def without_nan(numbers: np.ndarray) -> np.ndarray:
    if numbers.dtype.kind == "f" and len(numbers) and np.isnan(numbers.min()):  # faster than a look at each
        numbers = numbers[~np.isnan(numbers)]
    return numbers


@dataclass(frozen=True)
class NumericStatistic(Statistic):
    """A statistic that only numbers have."""

    def refuses(self, kind: pa.DataType) -> str | None:
        return None if is_number_type(kind) else "numbers"


@dataclass(frozen=True)
class MomentsOf:
    """What Moments gives."""

    count: int
    mean: float
    squares: float
    """Sum of the squared differences from the mean."""

    @property
    def variance(self) -> float:
        return self.squares / self.count


@dataclass(frozen=True)
class Moments(NumericStatistic):
    """Count, mean and spread together: a MomentsOf, or None if there are no values."""

    def start(self, key: Any, scratch: Scratch) -> Accumulator:
        return _Moments()


class _Moments(Accumulator):
    """Portions have their own mean and squares, which are merged; means are kept as the distance from a number near
    all values. So nothing cancels out, however large the values are."""

    def __init__(self) -> None:
        self._count = 0
        self._near = 0.0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, values: pa.Array) -> None:
        numbers = numbers_of(values)
        with np.errstate(invalid="ignore", over="ignore"):  # infinities show in the result
            for start in range(0, len(numbers), SLICE_ROWS):
                self._add_portion(numbers[start : start + SLICE_ROWS])

    def _add_portion(self, numbers: np.ndarray) -> None:
        if not self._count:
            self._near = _center(numbers)
        portion = np.subtract(numbers, self._near, dtype=np.float64)
        total = float(portion.sum())
        if math.isnan(total):
            portion = without_nan(portion)
            if not len(portion):
                return
            total = float(portion.sum())
        count = len(portion)
        mean = total / count
        portion -= mean
        # Not numpy.dot: OpenBLAS, called by several threads at once, was seen to wait for itself for ever.
        np.square(portion, out=portion)
        self._merge(count, mean, float(portion.sum()))

    def merge(self, other: Self) -> None:
        if not self._count:
            self._near = other._near
        if other._count:
            self._merge(other._count, other._mean + (other._near - self._near), other._squares)

    def _merge(self, count: int, mean: float, squares: float) -> None:
        both = self._count + count
        apart = mean - self._mean
        self._squares += squares + apart * apart * (self._count * count / both)
        self._mean = mean if not self._count else self._mean + apart * (count / both)
        self._count = both

    def result(self) -> MomentsOf | None:
        return MomentsOf(self._count, self._near + self._mean, self._squares) if self._count else None


def _center(numbers: np.ndarray) -> float:
    """The middle one of a few values: an outlier among them does not matter."""
    for some in (numbers[:CENTER_ROWS], numbers):
        finite = some[np.isfinite(some)]
        if len(finite):
            return float(np.sort(finite)[len(finite) // 2])
    return 0.0


@dataclass(frozen=True)
class Extremes(NumericStatistic):
    """The smallest and the largest value, or None if there are none."""

    def start(self, key: Any, scratch: Scratch) -> Accumulator:
        return _Extremes()


class _Extremes(Accumulator):
    def __init__(self) -> None:
        self._range: tuple[Any, Any] | None = None

    def add(self, values: pa.Array) -> None:
        numbers = without_nan(numbers_of(values))
        if len(numbers):
            self._widen(numbers.min().item(), numbers.max().item())

    def merge(self, other: Self) -> None:
        if other._range is not None:
            self._widen(*other._range)

    def _widen(self, low: Any, high: Any) -> None:
        self._range = (low, high) if self._range is None else (min(self._range[0], low), max(self._range[1], high))

    def result(self) -> tuple[Any, Any] | None:
        return self._range
