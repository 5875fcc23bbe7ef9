"""Exact quantiles in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from paceline.data.aggregate import Accumulator
from paceline.data.scratch import Scratch, Stored
from paceline.data.statistics import NumericStatistic, numbers_of, without_nan

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
