"""Which rank holds the others up, and why. Nothing here looks at a clock: it is fed with what ranks have measured.

A rank is compared by its own time: its steps without the time in which it waited for others. Where ranks wait for each
other in a collective operation that nobody measures, all steps are equally long, and the own time says nothing. A rank
that waits longer for data than the others is still seen then.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.air.words import brief_text
from paceline.run.timing import StepTimes, sum_of

LEAST_RATIO = 1.5
"""A rank is slow if its steps take that many times as long as those of the others ..."""
LEAST_SAMPLES = 5
"""... in that many samples in a row ..."""
LEAST_LOST_S = 0.25
"""... and if that has cost that much time."""
SAMPLE_S = 0.05
"""Steps are put together until they took that long: the scheduler of the machine makes shorter ones uneven."""
LEAST_SHARE = 0.1
"""Of a step: where ranks wait for something else most of the time, it does not matter which of them is faster."""
RECENT = 8
"""Samples by which the other ranks are known."""
LEAST_STEPS = 3
"""Fewer are no measure of a rank."""
CHANGED = 2.0
"""The same is said again if it got so many times worse."""

Cause = Literal["data", "work"]


@dataclass(slots=True)
class Slow:
    """How slow a rank is, in seconds per step; averages over what made it noticed."""

    rank: int
    own_s: float
    others_s: float
    data_s: float
    """By which it waits longer for data than the others."""
    in_step: bool = False
    """All ranks have equally long steps: the others wait for this one in them."""

    @property
    def ratio(self) -> float:
        return self.own_s / self.others_s if self.others_s > 0 else float("inf")

    @property
    def data_share(self) -> float:
        """Which part of the time that it takes longer is spent waiting for data."""
        return min(1.0, max(0.0, self.data_s / (self.own_s - self.others_s)))

    @property
    def cause(self) -> Cause:
        return "data" if self.data_share >= 0.5 else "work"

    def __str__(self) -> str:
        own, others = brief_text(self.own_s), brief_text(self.others_s)
        if self.in_step:
            return (
                f"rank {self.rank} keeps the other ranks waiting: it waits {brief_text(self.data_s)} longer for the "
                f"data of each step than they do. Without that, a step would take {others} instead of {own}."
            )
        share = f"{100 * self.data_share:.0f} % of the difference is" if self.data_share >= 0.005 else "it is not"
        return (
            f"rank {self.rank} is {_times(self.ratio)} slower than the others ({own} per step, the others {others}); "
            f"{share} waiting for data."
        )


@dataclass(slots=True, frozen=True)
class Pace:
    """Seconds per step of a rank: medians over samples, so that one unusual step does not count. DDP for one rebuilds
    its buckets in the second iteration, and does not measure for how long ranks wait for each other in there."""

    step_s: float
    own_s: float
    data_s: float


def _pace(samples: Iterable[StepTimes], since: StepTimes | None) -> Pace | None:
    known = [*samples, since] if since is not None and since.steps else list(samples)
    if sum(each.steps for each in known) < LEAST_STEPS:
        return None
    step, own, data = (
        statistics.median(getattr(each, name) for each in known) for name in ("step_s", "own_s", "data_s")
    )
    return Pace(step, own, data)


class _Rank:
    """What is known about one rank."""

    def __init__(self) -> None:
        self.under_way = StepTimes(0, 0)
        """What is not a sample yet."""
        self.recent: deque[StepTimes] = deque(maxlen=RECENT)
        self.complete: deque[StepTimes] = deque(maxlen=RECENT)
        """Those recent samples of which the rank's own time is known."""
        self.measures_collectives = False
        self.slow: list[tuple[Slow, int]] = []
        """Samples in a row in which it was slow, with their steps."""
        self.told: tuple[Cause, float] | None = None

    def take_in(self, times: StepTimes) -> StepTimes | None:
        """The sample that these times complete, if they do."""
        self.measures_collectives |= times.collective_steps > 0
        sample = self.under_way = sum_of(self.under_way, times)
        if sample.step_us < SAMPLE_S * 1e6:
            return None
        self.under_way = StepTimes(0, 0)
        self.recent.append(sample)
        if self.knows_own(sample):
            self.complete.append(sample)
        return sample

    def knows_own(self, sample: StepTimes) -> bool:
        """PyTorch measures the collectives of some steps only: of the others nobody knows what the rank did."""
        return not self.measures_collectives or sample.collective_steps > 0

    def lately(self) -> Pace | None:
        """Its steps in recent samples, and since; None if they are too few."""
        return _pace(self.recent, self.under_way)

    def own_lately(self) -> Pace | None:
        """The same for those samples of which its own time is known."""
        return _pace(self.complete, self.under_way if self.knows_own(self.under_way) else None)


class Stragglers:
    """The ranks of one attempt."""

    def __init__(self, world_size: int) -> None:
        self._ranks = [_Rank() for _ in range(world_size)]

    def measured(self, rank: int, times: StepTimes) -> Slow | None:
        """Take in what a rank has measured. Returns what there is to say about it now."""
        if len(self._ranks) == 1:
            return None
        own = self._ranks[rank]
        sample = own.take_in(times)
        if sample is None:
            return None
        others = [each for each in self._ranks if each is not own]
        slow = slow_in_data(rank, sample, [each.lately() for each in others])
        if own.knows_own(sample):
            slow = slow_by_itself(rank, sample, [each.own_lately() for each in others]) or slow
            if slow is None:
                own.slow.clear()
        if slow is None:
            return None
        own.slow.append((slow, sample.steps))
        return _to_tell(own)


def slow_by_itself(rank: int, sample: StepTimes, others: Iterable[Pace | None]) -> Slow | None:
    """How slow a rank was in a sample, compared with the own time of the others lately; None if it was not."""
    known = [each for each in others if each is not None]
    if not known:
        return None
    own_s, others_s = sample.own_s, statistics.median(each.own_s for each in known)
    if own_s < LEAST_RATIO * others_s or own_s - others_s < LEAST_SHARE * sample.step_s:
        return None
    return Slow(rank, own_s, others_s, sample.data_s - statistics.median(each.data_s for each in known))


def slow_in_data(rank: int, sample: StepTimes, others: Iterable[Pace | None]) -> Slow | None:
    """The same for ranks that move in step: how much of a step is due to this rank's waiting for data."""
    known = [each for each in others if each is not None]
    if not known:
        return None
    step_s, others_s = sample.step_s, statistics.median(each.step_s for each in known)
    more_s = sample.data_s - statistics.median(each.data_s for each in known)
    if step_s < LEAST_RATIO * (step_s - more_s) or step_s * LEAST_RATIO < others_s:
        return None
    return Slow(rank, step_s, step_s - more_s, more_s, in_step=True)


def _to_tell(own: _Rank) -> Slow | None:
    lost_s = sum((slow.own_s - slow.others_s) * steps for slow, steps in own.slow)
    if len(own.slow) < LEAST_SAMPLES or lost_s < LEAST_LOST_S:
        return None
    slow = _average(own.slow)
    own.slow.clear()
    if own.told is not None and own.told[0] == slow.cause and slow.ratio < CHANGED * own.told[1]:
        return None
    own.told = (slow.cause, slow.ratio)
    return slow


def _average(samples: Sequence[tuple[Slow, int]]) -> Slow:
    """Weighted by steps. What it is said to be, the last sample says."""
    steps = sum(count for _, count in samples)
    last = samples[-1][0]
    own, others, data = (
        sum(getattr(slow, name) * count for slow, count in samples) / steps for name in ("own_s", "others_s", "data_s")
    )
    return Slow(last.rank, own, others, data, last.in_step)


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio < 100 else "more than 100x"
