"""Samples of where all ranks are and what their processes use, and what follows from comparing them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from paceline.engine.usage import Usage
from paceline.run.positions import KnownFrames, Position


@dataclass(frozen=True)
class HangLimits:
    """How patient the watch is. Tests replace `hang_watch.LIMITS` with shorter ones."""

    warn_after_s: float = 60.0
    """How long ranks may be silent until it is worth a warning."""
    longest_between_warnings_s: float = 900.0
    """Each warning doubles the time to the next one, up to this."""
    auto_at_least_s: float = 1800.0
    """For how long a rank must stand still until "auto" ends the attempt; longer if `gap_factor` says so."""
    gap_factor: float = 10.0
    """The same, as a multiple of the longest time between two reports of the run."""
    sample_every_s: float = 60.0
    """While a rank is behind."""
    longest_between_samples_s: float = 600.0
    """While none is."""
    confirm_after_s: float = 2.0
    """Two samples so far apart decide whether ranks wait for one that has returned."""
    idle_share: float = 0.01
    """Of one core: a process tree that uses less is idle."""
    idle_spare_s: float = 0.02
    """Processor time that does not count: a sample takes some itself, and the system counts in hundredths."""
    idle_io_bytes: int = 1 << 20
    """A process tree that reads or writes more between two samples is not idle."""
    driver_stall_s: float = 1.0
    """The most that the time between two looks counts. What is longer is the driver's own delay."""
    look_every_s: float = 0.5


class Witness(Protocol):
    """Shows where the ranks are, and what their processes use."""

    def stacks(self) -> dict[int, str]: ...

    def usage(self) -> dict[int, Usage]: ...


@dataclass(frozen=True)
class Sample:
    """What the ranks show at one time."""

    at: float
    stacks: Mapping[int, str]
    positions: Mapping[int, Position]
    usage: Mapping[int, Usage]


class Samples:
    """The samples of one attempt. Only the last two are kept, and since when each rank has not changed."""

    def __init__(self, world_size: int, witness: Witness, known: KnownFrames, limits: HangLimits) -> None:
        self.last: Sample | None = None
        self._before: Sample | None = None
        self._witness = witness
        self._known = known
        self._limits = limits
        self._heard: Sequence[float] = [0.0] * world_size
        self._still_since = [math.inf] * world_size
        self._waits_since = [math.inf] * world_size

    def take(self, now: float, heard: Sequence[float]) -> Sample:
        """Ask all ranks; `heard` is when each of them has said something."""
        stacks = self._witness.stacks()
        positions = {rank: self._known.position(text) for rank, text in stacks.items()}
        self._before, self.last = self.last, Sample(now, stacks, positions, self._witness.usage())
        self._heard = list(heard)
        for rank in range(len(self._still_since)):
            for since, holds in ((self._still_since, self.stands_still), (self._waits_since, self._waits_throughout)):
                began = self._before.at if self._before is not None else math.inf
                since[rank] = min(since[rank], began) if holds(rank) else math.inf
        return self.last

    def forget(self) -> None:
        self.last = self._before = None
        self._still_since = [math.inf] * len(self._still_since)
        self._waits_since = [math.inf] * len(self._waits_since)

    def shift(self, seconds: float) -> None:
        """So much time has passed in which nobody could do anything."""
        if self.last is not None:
            self.last = replace(self.last, at=self.last.at + seconds)
        self._still_since = [moment + seconds for moment in self._still_since]
        self._waits_since = [moment + seconds for moment in self._waits_since]

    def still_since(self, rank: int) -> float:
        """Since when a rank has stood still; infinite if it does not."""
        return self._still_since[rank]

    def unchanged_since(self, rank: int) -> float:
        """The same, also for a rank that is busy waiting for others."""
        return min(self._still_since[rank], self._waits_since[rank])

    def stands_still(self, rank: int) -> bool:
        """The rank shows the same place in the last two samples, and its processes did nothing in between."""
        return self._is_where_it_was(rank) and self._is_idle(rank)

    def waits(self, rank: int) -> bool:
        """The rank waits for others in the last two samples."""
        position = self._position(rank)
        mixed = position is not None and position.may_wait_in != "" and self.stands_still(rank)
        return mixed or self._waits_throughout(rank)

    def may_wait(self, rank: int) -> bool:
        """It does so in the last one, as far as that shows."""
        position = self._position(rank)
        return position is not None and (position.waits_in or position.may_wait_in) != ""

    def _position(self, rank: int) -> Position | None:
        return None if self.last is None else self.last.positions.get(rank)

    def _waits_throughout(self, rank: int) -> bool:
        position = self._position(rank)
        return position is not None and position.waits_in != "" and self._is_where_it_was(rank)

    def _is_where_it_was(self, rank: int) -> bool:
        before, here = self._before, self._position(rank)
        if before is None or here is None or self._heard[rank] >= before.at:
            return False
        return before.positions.get(rank) == here

    def _is_idle(self, rank: int) -> bool:
        before, after, limits = self._before, self.last, self._limits
        earlier = before.usage.get(rank) if before is not None else None
        later = after.usage.get(rank) if after is not None else None
        position = self._position(rank)
        if before is None or after is None or earlier is None or later is None or position is None:
            return False
        if position.in_debugger or position.is_storing or later.is_traced:
            return False
        spent_s = later.cpu_s - earlier.cpu_s
        return (
            spent_s < limits.idle_share * (after.at - before.at) + limits.idle_spare_s
            and later.io_bytes - earlier.io_bytes < limits.idle_io_bytes
        )
