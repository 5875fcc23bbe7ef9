"""Sets of positions as sorted, disjoint ranges: `((start, stop), ...)`. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]


def length(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted, without empty ones, neighbours made one."""
    result: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return tuple(result)


def part(ranges: Ranges, start: int, stop: int) -> Ranges:
    """The members number start to stop, counted in order."""
    result = []
    seen = 0
    for low, high in ranges:
        first, last = max(start - seen, 0), min(stop - seen, high - low)
        if first < last:
            result.append((low + first, low + last))
        seen += high - low
        if seen >= stop:
            break
    return tuple(result)


def without(ranges: Ranges, removed: Ranges) -> Ranges:
    """Members of the first that are not in the second."""
    result = []
    cuts = iter((*removed, (1 << 62, 1 << 62)))
    cut_start, cut_stop = next(cuts)
    for start, stop in ranges:
        while cut_stop <= start:
            cut_start, cut_stop = next(cuts)
        while cut_start < stop:
            if start < cut_start:
                result.append((start, cut_start))
            start = max(start, cut_stop)
            if cut_stop >= stop:
                break
            cut_start, cut_stop = next(cuts)
        if start < stop:
            result.append((start, stop))
    return tuple(result)


def at(ranges: Ranges, numbers: Iterable[int]) -> Ranges:
    """The members with these numbers, counted in order."""
    wanted = sorted(numbers)
    result = []
    seen, index = 0, 0
    for low, high in ranges:
        while index < len(wanted) and wanted[index] - seen < high - low:
            position = low + wanted[index] - seen
            result.append((position, position + 1))
            index += 1
        seen += high - low
    return joined(result)


def dealt(ranges: Ranges, shares: int, *, equal: bool) -> list[Ranges]:
    """Consecutive shares of equal length; with equal=False the first ones have one more where it does not divide.

    With equal=True what does not divide must have been taken out before.
    """
    total = length(ranges)
    each, more = divmod(total, shares)
    if equal and more:
        raise ValueError(f"{total} does not divide by {shares}")
    result, start = [], 0
    for share in range(shares):
        stop = start + each + (1 if share < more else 0)
        result.append(part(ranges, start, stop))
        start = stop
    return result
