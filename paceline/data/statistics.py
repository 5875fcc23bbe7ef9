"""What a preprocessor wants to know of a column, found out in one pass with whatever else is wanted.

Here: the pass (`compute`), and statistics of numbers. Missing values (null, NaN) are left out, as scikit-learn does.
Counts of values and categories are in `value_counts.py`.
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
from paceline.data.store import Scratch, Stored

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


DIGIT_BITS = 16


@dataclass(frozen=True)
class Quantiles(NumericStatistic):
    """The quantiles at `qs` (0 to 1), with linear interpolation as numpy does it; None if there are no values."""

    qs: tuple[float, ...]

    def start(self, key: Any, scratch: Scratch) -> Accumulator:
        return _Values(self.qs, scratch)


class _Values(Accumulator):
    """Keeps all values, as the result may depend on any of them; in a file when they are many."""

    def __init__(self, qs: tuple[float, ...], scratch: Scratch) -> None:
        self._qs = qs
        self._scratch = scratch
        self._pieces: list[Stored] = []
        self._count = 0

    def add(self, values: pa.Array) -> None:
        numbers = without_nan(numbers_of(values))
        if numbers.dtype.itemsize < 4:
            numbers = numbers.astype(np.float32 if numbers.dtype.kind == "f" else np.int32)
        if len(numbers):
            self._pieces.append(self._scratch.put(numbers))
            self._count += len(numbers)

    def merge(self, other: Self) -> None:
        self._pieces += other._pieces
        self._count += other._count

    def result(self) -> tuple[float, ...] | None:
        if not self._count:
            return None
        places = [q * (self._count - 1) for q in self._qs]
        below = [min(math.floor(place), self._count - 1) for place in places]
        above = [min(rank + 1, self._count - 1) for rank in below]
        value = self._select({*below, *above})
        return tuple(
            _between(float(value[low]), float(value[high]), place - low)
            for low, high, place in zip(below, above, places, strict=True)
        )

    def _select(self, ranks: Iterable[int]) -> dict[int, Any]:
        """The values that would stand at these places if all were sorted.

        As in a radix sort, but only where a wanted rank lies: a pass over the values for every 16 bits
        of their binary form tells the next 16 bits of the values at the ranks.
        """
        dtype = self._scratch.get(self._pieces[0]).dtype
        found = {rank: _Search(0, rank) for rank in ranks}
        for shift in range(dtype.itemsize * 8 - DIGIT_BITS, -1, -DIGIT_BITS):
            counts = self._digit_counts(sorted({search.prefix for search in found.values()}), shift, dtype)
            found = {rank: search.narrowed(counts[search.prefix]) for rank, search in found.items()}
        return {rank: _from_key(search.prefix, dtype) for rank, search in found.items()}

    def _digit_counts(self, prefixes: Sequence[int], shift: int, dtype: np.dtype[Any]) -> dict[int, np.ndarray]:
        """Of the values that begin with each prefix, how many have which next digit."""
        counts = {prefix: np.zeros(1 << DIGIT_BITS, np.int64) for prefix in prefixes}
        first = shift == dtype.itemsize * 8 - DIGIT_BITS
        for piece in self._pieces:
            digits = _keys(self._scratch.get(piece)) >> shift
            for prefix, count in counts.items():
                inside = digits if first else digits[(digits >> DIGIT_BITS) == prefix]
                within = (inside & ((1 << DIGIT_BITS) - 1)).astype(np.intp)
                count += np.bincount(within, minlength=1 << DIGIT_BITS)
        return counts


@dataclass(frozen=True)
class _Search:
    """How far the search for one rank is."""

    prefix: int
    """The first bits of the value."""
    rank: int
    """Its place among the values that begin so."""

    def narrowed(self, counts: np.ndarray) -> _Search:
        upto = counts.cumsum()
        digit = int(upto.searchsorted(self.rank, side="right"))
        before = int(upto[digit - 1]) if digit else 0
        return _Search(self.prefix << DIGIT_BITS | digit, self.rank - before)


def _keys(values: np.ndarray) -> np.ndarray:
    """Unsigned integers that are in the same order as the values."""
    bits: np.ndarray = values.view(f"u{values.dtype.itemsize}")
    sign = bits.dtype.type(1 << (values.dtype.itemsize * 8 - 1))
    if values.dtype.kind == "u":
        return bits
    if values.dtype.kind == "i":
        bits = bits ^ sign
        return bits
    return np.where(bits & sign, ~bits, bits | sign)


def _from_key(key: int, dtype: np.dtype[Any]) -> Any:
    bits = np.array([key], f"u{dtype.itemsize}")
    sign = bits.dtype.type(1 << (dtype.itemsize * 8 - 1))
    if dtype.kind == "i":
        bits ^= sign
    elif dtype.kind == "f":
        bits = np.where(bits & sign, bits ^ sign, ~bits)
    return bits.view(dtype)[0]


def _between(low: float, high: float, share: float) -> float:
    """Interpolates from the nearer side, so that rounding never leaves the interval."""
    if low == high or share == 0:
        return low
    apart = high - low
    return low + apart * share if share < 0.5 else high - apart * (1 - share)
