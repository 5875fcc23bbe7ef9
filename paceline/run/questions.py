"""The rank's side of should_checkpoint() and preempted(), and what checkpoints cost its loop."""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.air.preemption import Preemption
from paceline.run.messages import Question, Told, encode


class Questions:
    """Asks the driver, which has one answer to the n-th question of all ranks."""

    def __init__(
        self, send: Callable[[bytes], None], wait_for_message: Callable[[], None], wall_offset_s: float
    ) -> None:
        self.saving_s = 0.0
        """How long the loop was taking snapshots or blocked: from an answer "save" to the end of the report that brings
        the checkpoint, and in reports with a checkpoint that nobody asked for."""
        self.asking_s = 0.0
        """How long it has waited for answers."""
        self._send = send
        self._wait_for_message = wait_for_message
        self._wall_offset_s = wall_offset_s
        self._asked = {False: 0, True: 0}
        """By whether it was preempted() that was called."""
        self._told: Told | None = None
        self.saves_since: float | None = None
        """Since when the loop is busy with a checkpoint (monotonic time)."""

    def should_checkpoint(self) -> bool:
        is_due = self._ask(of_preemption=False).is_due
        if is_due and self.saves_since is None:
            self.saves_since = time.monotonic()
        return is_due

    def preempted(self) -> Preemption | None:
        notice = self._ask(of_preemption=True).notice
        return None if notice is None else Preemption(notice.reason, notice.deadline - self._wall_offset_s)

    def _ask(self, *, of_preemption: bool) -> Told:
        began = time.monotonic()
        number = self._asked[of_preemption] = self._asked[of_preemption] + 1
        self._send(encode(Question(number, of_preemption, self.saving_s, self.asking_s)))
        # An answer to another question is for a call that a signal handler of the user's broke off.
        while (told := self._told) is None or (told.number, told.of_preemption) != (number, of_preemption):
            self._wait_for_message()
        self._told = None
        self.asking_s += time.monotonic() - began
        return told

    def received(self, told: Told) -> None:
        self._told = told

    def save_begins(self) -> None:
        """A report with a checkpoint; the snapshot may have begun before."""
        if self.saves_since is None:
            self.saves_since = time.monotonic()

    def save_ends(self) -> None:
        """The loop continues."""
        if self.saves_since is not None:
            self.saving_s += time.monotonic() - self.saves_since
            self.saves_since = None
