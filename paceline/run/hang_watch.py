"""Notices ranks that stopped making progress while others wait for them.

Time is monotonic. A long gap in which the driver itself did not run (a suspended laptop, a loaded
machine) barely counts against the workers.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

WARN_AFTER_S = 60.0
_DRIVER_STALL_S = 1.0
"""Looks follow each other by about half a second; a longer gap is the driver's own."""
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Stall:
    """Ranks that make no progress."""

    ranks: list[int]
    text: str
    is_error: bool
    """Whether the user's time limit is exceeded; otherwise it is only worth telling."""


class HangWatch:
    """Progress of the ranks of one attempt, measured by their reports."""

    def __init__(self, world_size: int, hang_timeout_s: float | None) -> None:
        now = time.monotonic()
        self._timeout = hang_timeout_s
        self._last_progress = [now] * world_size
        self._last_look = now
        self._next_warning = now + WARN_AFTER_S

    def progressed(self, rank: int) -> None:
        self._last_progress[rank] = time.monotonic()

    def is_due(self) -> bool:
        """Cheap enough to be asked at every step."""
        return time.monotonic() - self._last_look >= _LOOK_EVERY_S

    def find(
        self, running: list[int], ended: Collection[int], last_index: Sequence[int], excused: Collection[int] = ()
    ) -> Stall | None:
        """Ranks that hold the others up, if there is something to say about them now."""
        furthest = max(last_index)
        behind = [rank for rank in running if last_index[rank] < furthest or ended]
        warn, hung = self.look(behind, running, excused)
        reports = f"(last report of each rank: {list(last_index)})"
        if hung:
            ranks = ", ".join(map(str, hung))
            limit = f"no progress within hang_timeout_s={self._timeout:g} s"
            return Stall(hung, f"{limit}: rank(s) {ranks} did not report {reports}", is_error=True)
        if warn:
            return Stall(warn, f"{_remark(warn, ended)} {reports}", is_error=False)
        return None

    def look(self, behind: list[int], running: list[int], excused: Collection[int] = ()) -> tuple[list[int], list[int]]:
        """(ranks to warn about, ranks that hang).

        `behind` are the running ranks that others have overtaken; `running` all that have
        not finished. `excused` are ranks that cannot make progress through no fault of their
        own, such as one that waits for the driver: their time starts anew when they no longer
        are. Without a time limit nothing is an error: a long epoch is not a hang.
        """
        now = time.monotonic()
        stall = now - self._last_look
        self._last_look = now
        excess = stall - _DRIVER_STALL_S
        if excess > 0:  # The rest counts, or a driver that is slow again and again would never notice anything.
            self._last_progress = [moment + excess for moment in self._last_progress]
            self._next_warning += excess
        for rank in excused:
            self._last_progress[rank] = now
        hung: list[int] = []
        if self._timeout is not None:
            late = [rank for rank in running if now - self._last_progress[rank] > self._timeout]
            # The ranks that are behind hold the others up; with none behind, all hang together.
            hung = [rank for rank in late if rank in behind] or late
        warn: list[int] = []
        if now >= self._next_warning:
            warn = [rank for rank in behind if now - self._last_progress[rank] > WARN_AFTER_S]
            if warn:
                self._next_warning = now + WARN_AFTER_S
        return warn, hung


def _remark(late: Collection[int], ended: Collection[int]) -> str:
    ranks = ", ".join(map(str, late))
    if not ended:
        return f"Rank(s) {ranks} have not reported for 60 s while others wait for them"
    gone = ", ".join(map(str, sorted(ended)))
    return (
        f"Rank(s) {ranks} have not reported for 60 s, and rank(s) {gone} have returned from the train function. A rank "
        "that waits for one of those in a collective operation waits for ever: let every rank take the same number of "
        "steps. FailureConfig(hang_timeout_s=...) ends such a run"
    )


def stacks_text(stacks: Mapping[int, str], first: Sequence[int]) -> str:
    """Every rank's stack under its name, those of `first` before the others: they are what is looked for."""
    order = [rank for rank in first if rank in stacks] + [rank for rank in sorted(stacks) if rank not in first]
    return "\n".join(f"-- rank {rank} --\n{stacks[rank]}" for rank in order)
