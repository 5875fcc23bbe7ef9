"""Notices ranks that stopped making progress while others wait for them.

`HangWatch` measures progress by what ranks say. Where that is not enough, it takes samples (`hang_samples.py`): the
stacks of all ranks, and what their processes use. It returns what it has found; the run acts on it. Its time is
monotonic. Time in which the driver itself did not run (a suspended laptop, a loaded machine) barely counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from paceline.air.errors import FailureKind
from paceline.air.words import duration_text
from paceline.run.hang_samples import HangLimits, Samples, Witness
from paceline.run.hang_words import Scene
from paceline.run.positions import KnownFrames

HangTimeout: TypeAlias = float | Literal["auto"] | None
"""`FailureConfig.hang_timeout_s`."""

LIMITS = HangLimits()


@dataclass(frozen=True)
class Stall:
    """Ranks that make no progress."""

    ranks: list[int]
    """Those that the others wait for."""
    text: str
    stacks: str
    kind: FailureKind | None = None
    """Why the attempt ends; None if it is only worth a warning."""


@dataclass(frozen=True)
class Progress:
    """How far the ranks are."""

    running: Sequence[int]
    returned: Collection[int]
    last_index: Sequence[int]
    start_index: int = 0
    """Where the attempt began."""
    excused: Collection[int] = ()
    """Ranks that make no progress through no fault of their own, such as one that waits for the driver. Their clock
    restarts when they are no longer excused."""

    @property
    def behind(self) -> list[int]:
        """Running ranks that others have overtaken, or that still run after another has returned."""
        furthest = max(self.last_index)
        return [rank for rank in self.running if self.last_index[rank] < furthest or self.returned]

    @property
    def has_begun(self) -> bool:
        """Some rank has reported in this attempt."""
        return max(self.last_index) > self.start_index


class HangWatch:
    """The ranks of one attempt."""

    def __init__(
        self,
        world_size: int,
        timeout: HangTimeout,
        witness: Witness,
        known: KnownFrames | None = None,
        *,
        longest_gap: Callable[[], float] = lambda: 0.0,
        ranks_leave: bool = False,
    ) -> None:
        """`longest_gap` finds the longest time between two reports of the run; it is rarely asked.
        `ranks_leave`: whoever waits for a rank that has returned gets an error, so that samples need not find out.
        """
        now = time.monotonic()
        self._limits = limits = LIMITS
        self._timeout = timeout
        self._longest_gap = longest_gap
        self._ranks_leave = ranks_leave
        self._samples = Samples(world_size, witness, known or KnownFrames(), limits)
        self._next_sample = now
        self._heard = [now] * world_size
        """When each rank has said something, at the latest."""
        self._reported = [now] * world_size
        """The same, where it was more than a question or a warning."""
        self._since = [now] * world_size
        """The same as `_reported`, or when the rank was last excused."""
        self._spoke: set[int] = set()
        self._moved: set[int] = set()
        """Ranks that have said something since the last look, and those whose message shows progress."""
        self.progressed: Callable[[int], None] = self._moved.add
        """A rank has said something that shows progress. It is called for every message, so no clock is read."""
        self.heard: Callable[[int], None] = self._spoke.add
        """A rank has said something that does not: it may do so forever."""
        self._last_look = now
        self._next_warning = now + limits.warn_after_s
        self._between_warnings = limits.warn_after_s
        self._shown_stacks = ""
        """By the last warning."""
        self.suspended = False
        """Somebody is debugging a rank: nothing is watched, and all times start anew afterwards."""

    def is_due(self) -> bool:
        """Cheap enough to be asked at every step."""
        return time.monotonic() - self._last_look >= self._limits.look_every_s

    def _start_anew(self, now: float) -> None:
        self._since, self._reported, self._heard = ([now] * len(self._since) for _ in range(3))
        self._next_warning = now + self._limits.warn_after_s
        self._samples.forget()

    def find(self, progress: Progress) -> Stall | None:
        """Ranks that hold the others up, if there is something to say about them now."""
        now = time.monotonic()
        self._pass_time(now, progress.excused)
        if self.suspended:
            self._start_anew(now)
            return None
        found = self._over_the_limit(now, progress)
        if found is None and len(progress.last_index) > 1 and progress.running:
            if self._is_sample_due(now, progress):
                self._samples.take(now, self._heard)
                self._plan_sample(now, progress)
                found = self._left_waiting(progress) or self._stuck(now, progress)
            found = found or self._warning(now, progress)
        return found

    def _pass_time(self, now: float, excused: Collection[int]) -> None:
        excess = now - self._last_look - self._limits.driver_stall_s
        self._last_look = now
        if excess > 0:  # The rest counts, or a driver that is slow again and again would never notice anything.
            self._since = [moment + excess for moment in self._since]
            self._reported = [moment + excess for moment in self._reported]
            self._heard = [moment + excess for moment in self._heard]
            self._next_warning += excess
            self._samples.shift(excess)
        for rank in self._moved:
            self._reported[rank] = self._heard[rank] = self._since[rank] = now
        for rank in self._spoke:
            self._heard[rank] = now
        self._moved.clear()
        self._spoke.clear()
        for rank in excused:
            self._since[rank] = now

    def _over_the_limit(self, now: float, progress: Progress) -> Stall | None:
        """Ranks that are silent for longer than the user allows."""
        if not isinstance(self._timeout, float | int):
            return None
        late = [rank for rank in progress.running if now - self._since[rank] > self._timeout]
        if not late:
            return None
        # The ranks that are behind hold the others up; with none behind, all hang together.
        hung = sorted(set(progress.behind).intersection(late)) or late
        self._samples.take(now, self._heard)
        return self._stall(progress, hung, f"no progress within hang_timeout_s={self._timeout:g} s", "hang")

    # -- samples --------------------------------------------------------------------------------

    def _quiet_s(self, now: float, ranks: Sequence[int]) -> float:
        """How long none of them has said anything."""
        return now - max(self._heard[rank] for rank in ranks)

    def _is_sample_due(self, now: float, progress: Progress) -> bool:
        if now < self._next_sample:
            return False
        quiet = self._quiet_s(now, progress.running)
        if progress.returned and not self._ranks_leave:
            return quiet >= self._limits.confirm_after_s
        if progress.behind:
            return now - min(self._since[rank] for rank in progress.behind) >= self._limits.sample_every_s / 2
        return quiet >= self._limits.warn_after_s

    def _plan_sample(self, now: float, progress: Progress) -> None:
        """The next one comes soon if it is to confirm what was seen; else more and more rarely while none is behind."""
        limits, samples = self._limits, self._samples
        may_wait = any(samples.may_wait(rank) for rank in progress.running)
        if may_wait and not any(samples.waits(rank) for rank in progress.running):
            wait_s = limits.confirm_after_s
        elif progress.behind and not progress.returned:
            wait_s = limits.sample_every_s
        else:
            longest = limits.sample_every_s if progress.behind else limits.longest_between_samples_s
            wait_s = max(limits.confirm_after_s, min(self._quiet_s(now, progress.running), longest))
        self._next_sample = now + wait_s

    def _left_waiting(self, progress: Progress) -> Stall | None:
        """A rank has returned and all others wait: for that one, as nobody else is left."""
        if self._ranks_leave or not progress.returned or not all(map(self._samples.waits, progress.running)):
            return None
        scene = self._scene(progress)
        return Stall(sorted(progress.returned), scene.returned_early(), scene.stacks_text([]), "report_mismatch")

    def _stuck(self, now: float, progress: Progress) -> Stall | None:
        """Ranks behind that have stood still for so long that "auto" ends the attempt."""
        if self._timeout != "auto" or not progress.has_begun:
            return None
        limit, samples = self._limits.auto_at_least_s, self._samples
        behind = [rank for rank in progress.behind if rank not in progress.excused]
        if not any(now - samples.still_since(rank) >= limit for rank in behind):
            return None
        gap = self._longest_gap()
        limit = max(limit, self._limits.gap_factor * gap)
        stuck = [rank for rank in behind if now - samples.still_since(rank) >= limit]
        if not stuck or not all(self._is_no_reason_to_wait(now, rank, limit, gap) for rank in progress.running):
            return None
        return self._stall(progress, stuck, f'no progress for {duration_text(limit)} (hang_timeout_s="auto")', "hang")

    def _is_no_reason_to_wait(self, now: float, rank: int, limit: float, gap: float) -> bool:
        """False for a rank that works without a report: the others may be waiting for it, and then nobody hangs."""
        reports = now - self._reported[rank] <= max(self._limits.warn_after_s, gap)
        return reports or now - self._samples.unchanged_since(rank) >= limit

    # -- warnings -------------------------------------------------------------------------------

    def _warning(self, now: float, progress: Progress) -> Stall | None:
        if now < self._next_warning:
            return None
        limits, samples = self._limits, self._samples
        late = [rank for rank in progress.behind if now - self._since[rank] > limits.warn_after_s]
        if not late and not self._is_deadlock(now, progress):
            self._between_warnings = limits.warn_after_s
            return None
        if samples.last is None or samples.last.at < now:
            samples.take(now, self._heard)
        self._next_warning = now + self._between_warnings
        self._between_warnings = min(2 * self._between_warnings, limits.longest_between_warnings_s)
        silent_s = now - max(self._since[rank] for rank in late or progress.running)
        head = f"No progress for {duration_text(max(silent_s, limits.warn_after_s))}"
        stall = self._stall(progress, late or list(progress.running), head, None)
        before, self._shown_stacks = self._shown_stacks, stall.stacks
        return replace(stall, stacks="All stacks are as before.") if stall.stacks == before else stall

    def _is_deadlock(self, now: float, progress: Progress) -> bool:
        """No rank is behind, and they wait for each other, or for one that does nothing."""
        samples, running = self._samples, progress.running
        return (
            not progress.behind
            and self._quiet_s(now, running) >= self._limits.warn_after_s
            and any(map(samples.waits, running))
            and all(samples.waits(rank) or samples.stands_still(rank) for rank in running)
        )

    # -- what is told ---------------------------------------------------------------------------

    def _scene(self, progress: Progress) -> Scene:
        sample = self._samples.last
        assert sample is not None
        stacks = {rank: text for rank, text in sample.stacks.items() if rank in progress.running}
        return Scene(progress.running, sorted(progress.returned), progress.last_index, sample.positions, stacks)

    def _stall(self, progress: Progress, ranks: list[int], head: str, kind: FailureKind | None) -> Stall:
        scene = self._scene(progress)
        missing = scene.never_arrived(ranks)
        return Stall(missing, f"{head}: {scene.told(missing)}", scene.stacks_text(missing), kind)
