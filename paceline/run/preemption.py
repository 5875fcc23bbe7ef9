"""A preemption, seen from the driver: the workers have to go, and training continues later, or at once with others.

It begins with a signal to the driver or to a worker, or with a machine that drains. Ranks that ask whether to save are
told so, and all stop at the first report with a checkpoint that follows. Those of a loop that never asks stop at their
next report. Whoever is still there at the deadline is killed.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import Any

from paceline.air.errors import WorkerFailure
from paceline.run.advice import Advice
from paceline.run.answers import Answers
from paceline.run.checkpoint_budget import CheckpointBudget
from paceline.run.decisions import Continue, Decider, Decision, Restart
from paceline.run.messages import Notice, Question


@dataclass
class LoopAsks:
    """What is known of a run's calls of should_checkpoint() and preempted()."""

    seen: bool = False
    """There were some."""
    budget: CheckpointBudget | None = None
    """When the answer is yes without a preemption."""


class Preempting(Decider):
    """The preemption of one attempt, if there is one. It decides after those who decide anyway."""

    def __init__(self, decider: Decider, asks: LoopAsks) -> None:
        self.advice = Advice(asks.budget)
        if asks.budget is not None:
            asks.budget.attempt_starts(time.monotonic())
        self.ends_at = float("inf")
        """When workers that are still there are killed (monotonic time)."""
        self._decider = decider
        self._asks = asks
        self._rank = 0
        self._stops_after: int | None = None
        """The report that brings the checkpoint."""

    @property
    def has_begun(self) -> bool:
        return self.advice.notice is not None

    def begin(self, reason: str, within_s: float, answers: Answers, rank: int = 0) -> None:
        """From now on ranks are told when they ask. `rank` is the one that it concerns."""
        self._rank = rank
        self.ends_at = time.monotonic() + within_s
        self.advice.preempt(Notice(reason, time.time() + within_s))
        answers.hold(ends_training=False)
        if self._asks.seen:
            answers.await_checkpoint()

    def asked(self, rank: int, question: Question, answers: Answers) -> None:
        """Answer a rank. The first question after the beginning shows that the loop is about to save."""
        self._asks.seen = True
        answers.add([(rank, self.advice.answer(rank, question))])
        if answers.holding and rank in self.advice.told:
            answers.await_checkpoint()

    def saved(self, rank: int, index: int) -> None:
        """A rank has reported a checkpoint; rank 0's counts."""
        if rank == 0 and self._asks.budget is not None:
            self._asks.budget.reported(index, time.monotonic())
        if rank == 0 and rank in self.advice.told:
            self._stops_after = index

    def stored(self, newest: int) -> None:
        """The newest stored checkpoint is that of this report."""
        if self._asks.budget is not None:
            self._asks.budget.stored(newest, time.monotonic())

    def after_row(self, index: int, row: dict[str, Any], has_checkpoint: bool) -> Decision:
        decision = self._decider.after_row(index, row, has_checkpoint)
        return Restart() if isinstance(decision, Continue) and index == self._stops_after else decision

    def failure(self) -> WorkerFailure:
        """What ended the attempt, as far as retries are concerned."""
        assert self.advice.notice is not None
        return WorkerFailure(
            rank=self._rank,
            kind="preempted",
            message=f"preempted: {self.advice.notice.reason}",
            time_ns=time.monotonic_ns(),
        )


def signalled(signal_number: int, rank: int | None = None) -> str:
    """Who got the signal: a rank, or the driver."""
    return f"{signal.Signals(signal_number).name} to {'the driver' if rank is None else f'rank {rank}'}"
