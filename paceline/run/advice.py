"""What should_checkpoint() and preempted() answer in one attempt."""

from __future__ import annotations

import math
import time

from paceline.run.checkpoint_budget import CheckpointBudget
from paceline.run.messages import Notice, Question, Told


class Advice:
    """The n-th question of all ranks is one question: whoever asks first makes it decided, and the others get the same
    answer. Nobody waits for a peer."""

    def __init__(self, budget: CheckpointBudget | None = None) -> None:
        self._budget = budget
        self.notice: Notice | None = None
        """Of the preemption, once there is one."""
        self.told: set[int] = set()
        """Ranks that know of the preemption."""
        self._decided = {False: 0, True: 0}
        """The highest number that was asked, by whether the question was of preemption."""
        self._preempted_from: dict[bool, float] = {False: math.inf, True: math.inf}
        """The first question that is answered by the notice."""
        self._due: set[int] = set()
        """Questions that are answered with yes because of the budget."""

    def preempt(self, notice: Notice) -> None:
        """Questions that are not decided yet are answered by this notice."""
        self.notice = notice
        self._preempted_from = {kind: number + 1 for kind, number in self._decided.items()}

    def answer(self, rank: int, question: Question) -> Told:
        kind, number = question.of_preemption, question.number
        if self._budget is not None and not kind:
            self._look_at_budget(self._budget, rank, question)
        self._decided[kind] = max(self._decided[kind], number)
        if number < self._preempted_from[kind]:
            return Told(number, kind, is_due=not kind and number in self._due)
        self.told.add(rank)
        return Told(number, kind, is_due=True, notice=self.notice)

    def _look_at_budget(self, budget: CheckpointBudget, rank: int, question: Question) -> None:
        if rank == 0:
            budget.asked(question.number, question.saving_s, question.asking_s)
        if question.number > self._decided[False] and budget.is_due(question.number, time.monotonic()):
            self._due.add(question.number)
