"""Statistics of numbers. Missing values (null, NaN) are left out, as scikit-learn does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.statistics import Accumulator, Statistic
from paceline.data.statistics_scratch import Scratch

SLICE_ROWS = 32_768
"""Numbers are worked on in portions that stay in a core's cache."""
CENTER_ROWS = 64


def is_number_type(kind: pa.DataType) -> bool:
    """True for what can be calculated with: integers, floats, decimals, truth values; null stands for any type."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    types = pa.types
    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
    return any(test(kind) for test in tests)


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
    present: np.ndarray = numbers[~np.isnan(numbers)]
    return present


@dataclass(frozen=True)
class NumericStatistic(Statistic):
    """A statistic that only numbers have."""

    def refuses(self, kind: pa.DataType) -> str | None:
        return None if is_number_type(kind) else "numbers"


@dataclass(frozen=True)
class Count(Statistic):
    """How many values are there: neither null nor NaN."""

    def start(self, scratch: Scratch) -> Accumulator:
        return _Counting()


class _Counting(Accumulator):
    def __init__(self) -> None:
        self._count = 0

    def add(self, values: pa.Array) -> None:
        self._count += len(values) - values.null_count
        if pa.types.is_floating(values.type):
            self._count -= pc.sum(pc.is_nan(values)).as_py() or 0

    def merge(self, other: Self) -> None:
        self._count += other._count

    def result(self) -> int:
        return self._count


@dataclass(frozen=True)
class MomentsOf:
    """What Moments gives."""

    count: int
    mean: float
    squares: float
    """Sum of the squared differences from the mean."""

    def variance(self, ddof: int = 0) -> float:
        return self.squares / (self.count - ddof) if self.count > ddof else math.nan


@dataclass(frozen=True)
class Moments(NumericStatistic):
    """Count, mean and spread together: a MomentsOf, or None if there are no values."""

    def start(self, scratch: Scratch) -> Accumulator:
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
class Mean(NumericStatistic):
    """The mean, or None if there are no values."""

    @property
    def measured(self) -> Statistic:
        return Moments(self.column)

    def of(self, value: MomentsOf | None) -> float | None:
        return value.mean if value is not None else None


@dataclass(frozen=True)
class Std(NumericStatistic):
    """The standard deviation, or None if there are no values."""

    ddof: int = 0

    @property
    def measured(self) -> Statistic:
        return Moments(self.column)

    def of(self, value: MomentsOf | None) -> float | None:
        return math.sqrt(value.variance(self.ddof)) if value is not None else None


@dataclass(frozen=True)
class Extremes(NumericStatistic):
    """The smallest and the largest value, or None if there are none."""

    def start(self, scratch: Scratch) -> Accumulator:
        return _Extremes()


class _Extremes(Accumulator):
    def __init__(self) -> None:
        self._range: tuple[Any, Any] | None = None

    def add(self, values: pa.Array) -> None:
        numbers = numbers_of(values)
        if numbers.dtype.kind == "f" and len(numbers) and np.isnan(numbers.min()):
            numbers = without_nan(numbers)
        if len(numbers):
            self._widen(numbers.min().item(), numbers.max().item())

    def merge(self, other: Self) -> None:
        if other._range is not None:
            self._widen(*other._range)

    def _widen(self, low: Any, high: Any) -> None:
        self._range = (low, high) if self._range is None else (min(self._range[0], low), max(self._range[1], high))

    def result(self) -> tuple[Any, Any] | None:
        return self._range


@dataclass(frozen=True)
class _OfExtremes(NumericStatistic):
    @property
    def measured(self) -> Statistic:
        return Extremes(self.column)


@dataclass(frozen=True)
class Min(_OfExtremes):
    """The smallest value, or None if there are none."""

    def of(self, value: tuple[Any, Any] | None) -> Any:
        return value[0] if value is not None else None


@dataclass(frozen=True)
class Max(_OfExtremes):
    """The largest value, or None if there are none."""

    def of(self, value: tuple[Any, Any] | None) -> Any:
        return value[1] if value is not None else None


@dataclass(frozen=True)
class AbsMax(_OfExtremes):
    """The largest absolute value, or None if there are none."""

    def of(self, value: tuple[Any, Any] | None) -> Any:
        return max(abs(value[0]), abs(value[1])) if value is not None else None
