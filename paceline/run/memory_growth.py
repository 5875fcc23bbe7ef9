"""Which rank's memory grows without an end. Nothing here looks at a clock: it is fed with samples.

A rank that keeps something from step to step grows by about the same amount again and again. What training does anyway
looks different: warming up and filling caches slow down, lists double in steps, evaluation gives its memory back. So
the first third of the attempt is left out, and growth must have been even since. A cache that fills at an even pace
looks the same until it is full. Therefore a rank is named early only if the others do not grow; where all of them do,
it takes longer, and the text says what else it may be.

Only memory that belongs to processes counts: pages of mapped files grow while a dataset is read, and can be taken back
by the system at any time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from paceline.air.words import size_text
from paceline.engine.usage import Usage

MOST_POINTS = 24
"""That are kept of an attempt. When there are more, every other one goes, so they always cover all of it."""
LEAST_POINTS = 8
"""Fewer do not show whether growth is even."""
LARGEST_STEP = 0.4
"""A larger part of the growth in one step is a buffer that doubles."""
LARGEST_DROP = 0.3
"""What gives so much back at once, it does not keep: it is an epoch's."""
LEAST_SLOPE = 0.6
"""If the second half grows by less than that part of the first half, something is filling up."""
LEAST_SHARE_OF_STEPS = 0.8
"""In that many of the steps it must have grown."""
OTHERS_SHARE = 0.25
"""The others do not grow if they do so by at most that part."""
TOLD_AGAIN = 2.0
"""The same is said again when the memory is so many times larger."""


@dataclass(frozen=True)
class Limits:
    """What growth must come to."""

    seconds: float
    reports: int
    size: int
    share: float
    """Of what the rank had before."""


OF_ONE = Limits(20, 20, 128 << 20, 0.5)
"""The other ranks do not grow."""
OF_ALL = Limits(300, 200, 512 << 20, 0.5)
"""All ranks grow, or there is only one."""
OF_FAILED = Limits(3, 10, 128 << 20, 0.25)
"""The rank ran out of memory."""
ADVICE = 'See "A run whose memory grows" in docs/debugging.md.'


@dataclass(frozen=True)
class _Sample:
    reports: int
    memory: int
    own: int
    """Without pages of files."""


@dataclass(frozen=True)
class _Point:
    at: float
    ranks: Mapping[int, _Sample]


@dataclass(frozen=True)
class Growth:
    """How one rank has grown."""

    rank: int
    before: int
    now: int
    reports: int
    others: float | None
    """By how much the other ranks have grown; None if there are none, or they have grown, too."""

    def __str__(self) -> str:
        return f"from {size_text(self.before)} to {size_text(self.now)} over {self.reports} reports"

    @property
    def in_words(self) -> str:
        if self.others is None:
            return (
                f"The memory of rank {self.rank} grows steadily: {self}; other ranks, if there are any, do the same. "
                "That is normal while a cache or a buffer fills; otherwise the loop keeps something from step to step. "
                f"{ADVICE}"
            )
        return (
            f"The memory of rank {self.rank} grows steadily: {self}. The other ranks have grown by "
            f"{size_text(max(0, int(self.others)))}. Unless rank {self.rank} fills a cache, it keeps something from "
            f"step to step. {ADVICE}"
        )

    @property
    def as_cause(self) -> str:
        """For a rank that has run out of memory."""
        others = "" if self.others is None else f", the other ranks by {size_text(max(0, int(self.others)))}"
        return f"Rank {self.rank} grew {self}{others}: it seems to keep something from step to step. {ADVICE}"


class MemoryGrowth:
    """The ranks of one attempt."""

    def __init__(self) -> None:
        self._points: list[_Point] = []
        self._gap = 0.0
        self._told: dict[int, int] = {}

    def sampled(self, now: float, usages: Mapping[int, Usage], reports: Sequence[int]) -> list[Growth]:
        """Take in what the ranks use. Returns what there is to say about it now."""
        points = self._points
        if points and now - points[-1].at < self._gap:
            return []
        ranks = {
            rank: _Sample(reports[rank], usage.memory_bytes, usage.own_bytes)
            for rank, usage in usages.items()
            if rank < len(reports)
        }
        points.append(_Point(now, ranks))
        if len(points) > MOST_POINTS:
            del points[1::2]
            self._gap = 0.9 * (points[-1].at - points[0].at) / (len(points) - 1)
        return [growth for growth in self._found() if self._is_news(growth)]

    def of_failed(self, rank: int) -> Growth | None:
        """How a rank has grown that has run out of memory; None if it did not do so steadily.

        What it gave back while it ended does not count.
        """
        largest = max((point.ranks[rank].own for point in self._points if rank in point.ranks), default=0)
        while self._points and rank in self._points[-1].ranks and self._points[-1].ranks[rank].own < largest:
            self._points.pop()
        return self._growth(rank, OF_FAILED, alone=True) or self._growth(rank, OF_FAILED, alone=False)

    def _is_news(self, growth: Growth) -> bool:
        if growth.now < TOLD_AGAIN * self._told.get(growth.rank, 0):
            return False
        self._told[growth.rank] = growth.now
        return True

    def _found(self) -> Iterator[Growth]:
        ranks = sorted(self._points[-1].ranks)
        alone = [growth for rank in ranks if (growth := self._growth(rank, OF_ONE, alone=True)) is not None]
        if alone:
            yield from alone
            return
        together = [self._growth(rank, OF_ALL, alone=False) for rank in ranks]
        if together and all(growth is not None for growth in together):
            yield from filter(None, together[:1])

    def _growth(self, rank: int, limits: Limits, *, alone: bool) -> Growth | None:
        """How a rank has grown, if that was steady and came to something."""
        points = self._later_points(rank)
        if len(points) < LEAST_POINTS:
            return None
        first, last = points[0].ranks[rank], points[-1].ranks[rank]
        grown = last.own - first.own
        if (
            points[-1].at - points[0].at < limits.seconds
            or last.reports - first.reports < limits.reports
            or grown < max(limits.size, limits.share * first.own)
            or not _is_even([point.ranks[rank].own for point in points])
        ):
            return None
        others = _growth_of_others(rank, points)
        others_grow = others is None or others > OTHERS_SHARE * grown
        if alone and others_grow:
            return None
        began = next(point.ranks[rank] for point in self._points if rank in point.ranks)
        return Growth(rank, began.memory, last.memory, last.reports - began.reports, None if others_grow else others)

    def _later_points(self, rank: int) -> list[_Point]:
        points = [point for point in self._points if rank in point.ranks]
        if not points:
            return []
        since = points[0].at + (points[-1].at - points[0].at) / 3
        return [point for point in points if point.at >= since]


def _growth_of_others(rank: int, points: Sequence[_Point]) -> float | None:
    first, last = points[0].ranks, points[-1].ranks
    grown = [last[other].own - first[other].own for other in last if other != rank and other in first]
    return statistics.median(grown) if grown else None


def _is_even(sizes: Sequence[int]) -> bool:
    steps = [after - before for before, after in pairwise(sizes)]
    total, half = sum(steps), len(steps) // 2
    return (
        total > 0
        and sum(step > 0 for step in steps) >= LEAST_SHARE_OF_STEPS * len(steps)
        and max(steps) <= LARGEST_STEP * total
        and -min(steps) <= LARGEST_DROP * total
        and sum(steps[-half:]) >= LEAST_SLOPE * sum(steps[:half])
    )
