"""What should_checkpoint() and preempted() answer in one attempt.

A question costs the rank some tenths of a millisecond, which is a lot for short steps. So the answer "no" also covers
the questions that the rank is about to ask in the next `ALONE_S`: it answers them by itself. It comes back after that
time even if it has not asked them all. Then it gives back the rest.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right

from paceline.run.checkpoint_budget import CheckpointBudget
from paceline.run.messages import ALONE_S, Notice, Question, Told


class Advice:
    """The n-th question of all ranks is one question: whoever asks first makes it decided, and the others get the same
    answer. Nobody waits for a peer."""

    def __init__(self, budget: CheckpointBudget | None = None) -> None:
        self._budget = budget
        self.notice: Notice | None = None
        """Of the preemption, once there is one."""
        self.told: set[int] = set()
        """Ranks that know of the preemption."""
        self._answered: dict[bool, dict[int, int]] = {False: {}, True: {}}
        """By whether the question is of preemption, and by rank: the newest question that the rank has an answer to,
        or may answer with no by itself."""
        self._preempted_from: dict[bool, int] = {}
        """The first question that is answered by the notice."""
        self._due: list[int] = []
        """Questions that are answered with yes because of the budget, in ascending order."""

    def preempt(self, notice: Notice) -> None:
        """Questions that are not decided yet are answered by this notice."""
        self.notice = notice

    def answer(self, rank: int, question: Question) -> Told:
        kind, number = question.of_preemption, question.number
        now = time.monotonic()
        if self._budget is not None and not kind and rank == 0:
            self._budget.asked(number, question.saving_s, question.asking_s)
        answered = self._answered[kind]
        answered[rank] = number - 1  # What it could have answered by itself beyond this one, it has given back.
        if number > max(answered.values()):
            self._decide(kind, number, now)
        answered[rank] = number
        if number >= self._preempted_from.get(kind, number + 1):
            self.told.add(rank)
            self._answered[not kind][rank] = question.of_other_kind
            return Told(number, kind, is_due=True, notice=self.notice)
        if not kind and self._is_due(number):
            return Told(number, is_due=True)
        ahead = self._ahead(question, now)
        answered[rank] = number + ahead
        return Told(number, kind, no_until=number + ahead)

    def _decide(self, kind: bool, number: int, now: float) -> None:
        """A question that no rank has an answer to."""
        if self.notice is not None:
            self._preempted_from.setdefault(kind, number)
        elif self._budget is not None and not kind and self._budget.is_due(number, now):
            self._due.append(number)

    def _is_due(self, number: int) -> bool:
        place = bisect_left(self._due, number)
        return place < len(self._due) and self._due[place] == number

    def _ahead(self, question: Question, now: float) -> int:
        """How many more questions the rank may answer with no: none that may have another answer."""
        if self.notice is not None:
            return 0
        if self._budget is None or question.of_preemption:
            return question.ahead
        quiet = int(question.ahead * min(1.0, self._budget.quiet_s(now) / ALONE_S))
        # What another rank may answer with no is no. Beyond that, a checkpoint that is due would never have its turn.
        decided = max(self._answered[False].values())
        ahead = max(quiet, min(question.ahead, decided - question.number))
        place = bisect_right(self._due, question.number)
        return ahead if place == len(self._due) else min(ahead, self._due[place] - 1 - question.number)
