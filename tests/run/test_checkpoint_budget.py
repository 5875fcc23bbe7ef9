"""When checkpoints are due, with times by hand."""

from __future__ import annotations

import random

import pytest

from paceline.run.checkpoint_budget import STORING_MARGIN, CheckpointBudget


class Loop:
    """Rank 0 of a run, whose steps, snapshots and commits take as long as the test says."""

    def __init__(self, budget: CheckpointBudget, step_s: float, blocked_s: float, stored_s: float) -> None:
        self.budget = budget
        self.step_s, self.blocked_s, self.stored_s = step_s, blocked_s, stored_s
        self.now = self.began = 100.0
        self.number = self.index = 0
        self.saving_s = self.asking_s = 0.0
        self.taken: list[float] = []
        self.committed: list[tuple[float, float]] = []
        """(when it was committed, when it was taken)"""
        self._commits: list[tuple[float, int, float]] = []
        budget.attempt_starts(self.now)

    def step(self, question_s: float = 0.0) -> bool:
        self.now += self.step_s
        self._commit()
        self.number += 1
        self.budget.asked(self.number, self.saving_s, self.asking_s)
        due = self.budget.is_due(self.number, self.now)
        self.now += question_s
        self.asking_s += question_s
        self.index += 1
        if due:
            self.save()
        return due

    def save(self) -> None:
        self.taken.append(self.now)
        self.now += self.blocked_s
        self.saving_s += self.blocked_s
        self.budget.reported(self.index, self.now)
        self._commits.append((self.now + self.stored_s, self.index, self.taken[-1]))

    def _commit(self) -> None:
        while self._commits and self._commits[0][0] <= self.now:
            at, index, taken = self._commits.pop(0)
            self.budget.stored(index, at)
            self.committed.append((at, taken))

    def run(self, seconds: float, question_s: float = 0.0) -> None:
        while self.now < self.began + seconds:
            self.step(question_s)

    @property
    def overhead(self) -> float:
        return (self.saving_s + self.asking_s) / (self.now - self.began)


def test_the_first_one_is_due_at_once() -> None:
    loop = Loop(CheckpointBudget(0.03), step_s=1.0, blocked_s=0.3, stored_s=5.0)
    assert loop.step()
    assert not loop.step()


@pytest.mark.parametrize("blocked_s", [0.001, 0.3, 3.0])
@pytest.mark.parametrize("stored_s", [0.01, 10.0, 60.0])
def test_overhead_and_age_stay_within_their_limits(blocked_s: float, stored_s: float) -> None:
    budget = CheckpointBudget(0.03)
    loop = Loop(budget, step_s=0.05, blocked_s=blocked_s, stored_s=stored_s)
    loop.run(3600)
    interval = max(blocked_s / 0.03, STORING_MARGIN * (blocked_s + stored_s))
    assert budget.interval_s(loop.now) == pytest.approx(interval)
    gaps = [after - before for before, after in zip(loop.taken, loop.taken[1:], strict=False)]
    assert all(interval <= gap <= interval + 0.2 for gap in gaps)
    assert loop.overhead <= 0.031
    for (_, taken), (next_commit, _) in zip(loop.committed, loop.committed[1:], strict=False):
        assert next_commit - taken <= 2 * interval + 0.2, "it would be too old just before the next one"


def test_snapshots_of_any_length_pay_for_themselves() -> None:
    chance = random.Random(3)
    loop = Loop(CheckpointBudget(0.03), step_s=0.05, blocked_s=0.1, stored_s=0.1)
    for _ in range(60_000):
        loop.blocked_s = chance.choice([0.01, 0.1, 2.0])
        loop.step()
    assert len(loop.taken) > 20
    assert loop.overhead <= 0.035


def test_waiting_for_answers_counts() -> None:
    """Half of the overhead is left to checkpoints in any case."""
    loop = Loop(CheckpointBudget(0.04), step_s=0.05, blocked_s=0.4, stored_s=0.1)
    loop.run(2000, question_s=0.0005)
    assert loop.overhead == pytest.approx(0.04, rel=0.1)
    slow = Loop(CheckpointBudget(0.04), step_s=0.05, blocked_s=0.4, stored_s=0.1)
    slow.run(2000, question_s=0.05)
    assert slow.saving_s / 2000 == pytest.approx(0.02, rel=0.1)


def test_one_that_is_not_stored_yet_holds_back_the_next() -> None:
    """Nothing piles up, neither in memory nor on disk."""
    loop = Loop(CheckpointBudget(0.5), step_s=1.0, blocked_s=0.1, stored_s=50.0)
    assert [loop.step() for _ in range(50)] == [True] + [False] * 49
    assert any(loop.step() for _ in range(15))


def test_checkpoints_that_nobody_asked_for_count_too() -> None:
    loop = Loop(CheckpointBudget(0.1), step_s=1.0, blocked_s=1.0, stored_s=0.1)
    loop.save()
    assert [loop.step() for _ in range(8)] == [False] * 8
    assert any(loop.step() for _ in range(4))


def test_a_loop_that_does_not_save_is_told_again() -> None:
    budget = CheckpointBudget(0.1)
    budget.attempt_starts(0.0)
    budget.asked(1, 0.0, 0.0)
    assert budget.is_due(1, 1.0)
    budget.asked(1, 0.0, 0.0)  # Another rank asked the same question first: that is no second one.
    assert not budget.is_due(2, 1.0)
    budget.asked(3, 0.0, 0.0)
    assert budget.is_due(3, 1.1)


def test_the_next_attempt_knows_what_checkpoints_cost() -> None:
    budget = CheckpointBudget(0.1)
    first = Loop(budget, step_s=0.5, blocked_s=1.0, stored_s=2.0)
    first.run(30)
    again = Loop(budget, step_s=0.5, blocked_s=1.0, stored_s=2.0)
    again.run(9.5)
    assert not again.taken
    again.run(11)
    assert len(again.taken) == 1
