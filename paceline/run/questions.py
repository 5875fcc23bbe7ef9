"""The rank's side of should_checkpoint() and preempted(), and what checkpoints cost its loop."""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.air.preemption import Preemption
from paceline.run.messages import ALONE_S, Question, Told, encode
from paceline.run.timing import RankClock

MOST_ALONE = 64
"""A rank answers no more questions than these by itself, however fast it is. Others that are slow may not be told to
save before they have asked as many, and a rank that asks is never far ahead of the driver with its reports."""


class _Line:
    """The questions of one kind: should_checkpoint(), or preempted()."""

    def __init__(self) -> None:
        self.asked = 0
        """How many calls there were."""
        self.no_until = 0
        """Calls up to this one are answered with no ..."""
        self._told_at: float | None = None
        """... for some time after this moment."""
        self._told_number = 0

    def is_answered(self, now: float) -> bool:
        """Whether the newest call needs no driver."""
        return self.asked <= self.no_until and self._told_at is not None and now < self._told_at + ALONE_S

    def ahead(self, now: float) -> int:
        """How many calls will follow the newest one within `ALONE_S`, at the pace of those since the last answer."""
        if self._told_at is None:
            return 0
        calls, elapsed = self.asked - self._told_number, max(now - self._told_at, 1e-6)
        return min(MOST_ALONE, int(ALONE_S * calls / elapsed))

    def told(self, no_until: int, now: float) -> None:
        self.no_until, self._told_at, self._told_number = no_until, now, self.asked


class Questions:
    """Asks the driver, which has one answer to the n-th question of all ranks."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        wait_for_message: Callable[[], None],
        wall_offset_s: float,
        clock: RankClock,
    ) -> None:
        self.saving_s = 0.0
        """How long the loop was taking snapshots or blocked: from an answer "save" to the end of the report that brings
        the checkpoint, and in reports with a checkpoint that nobody asked for."""
        self.asking_s = 0.0
        """How long it has waited for answers."""
        self._send = send
        self._wait_for_message = wait_for_message
        self._wall_offset_s = wall_offset_s
        self._clock = clock
        self._lines = {False: _Line(), True: _Line()}
        """By whether it was preempted() that was called."""
        self._told: Told | None = None
        self._saves_since: float | None = None
        """Since when the loop is busy with a checkpoint."""

    def should_checkpoint(self) -> bool:
        told = self._ask(of_preemption=False)
        is_due = told is not None and told.is_due
        if is_due:
            self.save_begins()
        return is_due

    def preempted(self) -> Preemption | None:
        told = self._ask(of_preemption=True)
        if told is None or (notice := told.notice) is None:
            return None
        return Preemption(notice.reason, notice.deadline - self._wall_offset_s)

    def _ask(self, *, of_preemption: bool) -> Told | None:
        """None: the driver said before that the answer is no."""
        began = time.monotonic()
        line = self._lines[of_preemption]
        line.asked += 1
        if line.is_answered(began):
            return None
        number = line.asked
        other = self._lines[not of_preemption].asked
        self._send(encode(Question(number, of_preemption, self.saving_s, self.asking_s, line.ahead(began), other)))
        # An answer to another question is for a call that a signal handler of the user's broke off.
        while (told := self._told) is None or (told.number, told.of_preemption) != (number, of_preemption):
            self._wait_for_message()
        self._told = None
        now = time.monotonic()
        line.told(told.no_until, now)
        if told.notice is not None:
            self.ask_again()
        self.asking_s += now - began
        return told

    def ask_again(self) -> None:
        """Something is about to happen: what the driver said before of calls that have not been made is forgotten."""
        for line in self._lines.values():
            line.no_until = 0

    def received(self, told: Told) -> None:
        self._told = told

    def snapshot_begins(self) -> None:
        """What lies between the answer and this moment was other work, such as a validation."""
        self._saves_since = self._working_time()

    def save_begins(self) -> None:
        """A report with a checkpoint; the snapshot may have begun before."""
        if self._saves_since is None:
            self._saves_since = self._working_time()

    def save_ends(self) -> None:
        """The loop continues, or waits for something else."""
        if self._saves_since is not None:
            self.saving_s += self._working_time() - self._saves_since
            self._saves_since = None

    def _working_time(self) -> float:
        """Stands still while a rank is in the debugger."""
        return time.monotonic() - self._clock.stood_still_s
