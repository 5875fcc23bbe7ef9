"""When the next checkpoint is due under `CheckpointConfig(max_overhead=...)`.

A checkpoint costs the loop some time: to take the snapshot, and in report(). Storing it takes longer, in the
background. After a checkpoint that cost c seconds the next one is due c / max_overhead seconds later, so that each has
paid for itself whatever the next one costs, and not before the last one is stored, with a margin. So after a crash the
newest stored checkpoint is at most two such intervals old. The first one is due at once: it is what the others are
measured by.

All times are those of one clock, which the caller reads.
"""

from __future__ import annotations

import math

LEAST_SHARE = 0.5
"""Of the overhead that is allowed, this much is left to checkpoints, however long the loop waits for answers."""

STORING_MARGIN = 1.25
"""The next checkpoint may take that much longer to be stored than the last one, and is still in time."""


class CheckpointBudget:
    """The checkpoint budget of one run. Rank 0 is the one that counts: its snapshot is kept."""

    def __init__(self, max_overhead: float) -> None:
        self.blocked_s = 0.0
        """How long the last checkpoint kept the loop from its work."""
        self.stored_s = 0.0
        """How long it took from its report to its commit."""
        self._max_overhead = max_overhead
        self.attempt_starts(0.0)

    def attempt_starts(self, now: float) -> None:
        """New ranks begin to work; what was measured of checkpoints still holds."""
        self._began = self._taken = now
        self._told: int | None = None
        """The question that was answered with yes, until the checkpoint is reported."""
        self._reported: tuple[int, float] | None = None
        """The report of the checkpoint that is not stored yet, and when it came."""
        self._cost_is_known = True
        self._saving_s = self._asking_s = 0.0

    def asked(self, number: int, saving_s: float, asking_s: float) -> None:
        """Rank 0 asks, and says for how long in all it was busy with checkpoints and waited for answers."""
        if not self._cost_is_known:
            self.blocked_s, self._cost_is_known = saving_s - self._saving_s, True
        elif self._told is not None and number > self._told:
            self._told = None  # It was told to save, and asks again instead.
        self._saving_s, self._asking_s = saving_s, asking_s

    def reported(self, index: int, now: float) -> None:
        """Rank 0 has reported a checkpoint, whether or not it was told to."""
        if self._told is None:
            self._taken = now
        self._told, self._cost_is_known = None, False
        self._reported = (index, now)

    def stored(self, newest: int, now: float) -> None:
        """The newest stored checkpoint is that of report `newest`."""
        if self._reported is not None and newest >= self._reported[0]:
            self.stored_s = now - self._reported[1]
            self._reported = None

    def interval_s(self, now: float) -> float:
        """How long after the last checkpoint the next one is due. Questions cost the loop something, too."""
        asking = self._asking_s / max(now - self._began, 1e-9)
        share = max(self._max_overhead - asking, LEAST_SHARE * self._max_overhead)
        return max(self.blocked_s / share, STORING_MARGIN * (self.blocked_s + self.stored_s))

    def quiet_s(self, now: float) -> float:
        """For how long from now no checkpoint is due. While one is under way nobody knows; none is due then."""
        return math.inf if self._is_under_way else max(0.0, self._taken + self.interval_s(now) - now)

    def is_due(self, number: int, now: float) -> bool:
        """The answer to a question that nobody has asked yet."""
        if self._is_under_way or now < self._taken + self.interval_s(now):
            return False
        self._told, self._taken = number, now
        return True

    @property
    def _is_under_way(self) -> bool:
        return self._told is not None or self._reported is not None or not self._cost_is_known
