"""One answer to the n-th question of all ranks."""

from __future__ import annotations

import random
import time

import pytest

from paceline.run.advice import Advice
from paceline.run.checkpoint_budget import CheckpointBudget
from paceline.run.messages import ALONE_S, Notice, Question, Told

NOTICE = Notice("SIGTERM to rank 1", 1000.0)


def test_nothing_is_due_by_default() -> None:
    advice = Advice()
    assert advice.answer(0, Question(1)) == Told(1, no_until=1)
    assert advice.answer(0, Question(1, of_preemption=True)) == Told(1, of_preemption=True, no_until=1)
    assert not advice.told


def test_questions_that_some_rank_has_asked_before_keep_their_answer() -> None:
    advice = Advice()
    for number in range(1, 6):
        advice.answer(0, Question(number))
    advice.preempt(NOTICE)
    assert [advice.answer(1, Question(number)).is_due for number in range(1, 8)] == [False] * 5 + [True] * 2
    assert advice.told == {1}
    assert advice.answer(0, Question(6)) == Told(6, is_due=True, notice=NOTICE)


def test_the_two_kinds_of_questions_are_counted_apart() -> None:
    advice = Advice()
    advice.answer(0, Question(1))
    advice.answer(0, Question(2))
    advice.preempt(NOTICE)
    assert advice.answer(0, Question(1, of_preemption=True, of_other_kind=2)).notice == NOTICE
    assert advice.answer(1, Question(2)).notice is None


def test_all_ranks_are_told_the_same_in_any_order() -> None:
    """However the ranks' questions and the preemption follow each other."""
    for seed in range(50):
        order = random.Random(seed)
        advice, asked, answers = Advice(), [0, 0, 0], [[], [], []]
        for turn in range(120):
            if turn == 40:
                advice.preempt(NOTICE)
            rank = order.choice([0, 0, 0, 1, 2])
            asked[rank] += 1
            answers[rank].append(advice.answer(rank, Question(asked[rank])).is_due)
        for first, second in zip(*sorted(answers, key=len)[1:], strict=False):
            assert first == second
        shortest = min(map(len, answers))
        assert len({tuple(each[:shortest]) for each in answers}) == 1


def test_no_covers_the_questions_that_a_rank_is_about_to_ask() -> None:
    advice = Advice()
    assert advice.answer(0, Question(1, ahead=9)) == Told(1, no_until=10)
    advice.preempt(NOTICE)
    asked_meanwhile = [advice.answer(1, Question(number, ahead=9)) for number in range(1, 12)]
    assert [told.is_due for told in asked_meanwhile] == [False] * 10 + [True], "rank 0 has said no up to the tenth"
    assert all(told.no_until <= told.number for told in asked_meanwhile), "nobody may be late"
    assert advice.answer(0, Question(11)).is_due


def test_what_a_rank_has_not_answered_by_itself_it_gives_back() -> None:
    """A rank whose steps have become longer asks before it has come to the end."""
    advice = Advice()
    for rank in (0, 1):
        advice.answer(rank, Question(1, ahead=200))
    advice.preempt(NOTICE)
    assert not advice.answer(0, Question(5)).is_due, "rank 1 may have answered this one with no"
    assert advice.answer(1, Question(6)).is_due
    assert advice.answer(0, Question(6)).is_due


def test_ranks_that_know_of_the_preemption_are_told_to_save_at_their_next_question() -> None:
    """A loop that calls preempted() and then should_checkpoint()."""
    advice = Advice()
    for rank in (0, 1):
        advice.answer(rank, Question(1, ahead=200))
    advice.preempt(NOTICE)
    for rank in (0, 1):
        assert advice.answer(rank, Question(1, of_preemption=True, of_other_kind=3)).notice == NOTICE
    assert advice.answer(1, Question(4)).is_due
    assert advice.answer(0, Question(4)).is_due


def test_nobody_answers_alone_when_a_checkpoint_is_about_to_be_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    budget = CheckpointBudget(0.1)
    budget.attempt_starts(100.0)
    advice = Advice(budget)
    assert advice.answer(0, Question(1, ahead=100)).is_due
    budget.reported(1, 100.0)
    budget.stored(1, 100.0)
    assert advice.answer(0, Question(2, saving_s=0.1, ahead=100)) == Told(2, no_until=102), "due in a second"
    now[0] += 1.0 - ALONE_S / 4 - 1e-6
    assert advice.answer(0, Question(3, saving_s=0.1, ahead=100)) == Told(3, no_until=28)
    now[0] += ALONE_S / 4 + 1e-3
    assert advice.answer(0, Question(4, saving_s=0.1, ahead=100)).is_due
    assert advice.answer(1, Question(1, ahead=100)).is_due
    assert advice.answer(1, Question(2, ahead=100)) == Told(2, no_until=3)


def test_ranks_in_turn_cannot_put_off_a_checkpoint_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each could answer on its own for a while when the other one's time is over."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    budget = CheckpointBudget(0.1)
    budget.attempt_starts(100.0)
    advice = Advice(budget)
    assert advice.answer(0, Question(1)).is_due
    budget.reported(1, 100.0)
    assert advice.answer(0, Question(2, saving_s=0.1, ahead=10)).no_until == 12, "none is due before it is stored"
    assert advice.answer(1, Question(7, ahead=10)).no_until == 17
    now[0] += 10.0
    budget.stored(1, now[0] - 9.0)
    assert advice.answer(0, Question(13, saving_s=0.1, ahead=10)) == Told(13, no_until=17), "rank 1 may be there"
    assert advice.answer(1, Question(18, ahead=10)).is_due


class Rank:
    """Asks as a worker does: by itself as long as it may, and with pauses of any length."""

    def __init__(self, rank: int, advice: Advice, order: random.Random) -> None:
        self.answers: list[bool] = []
        self._rank, self._advice, self._order = rank, advice, order
        self._no_until = 0

    def asks(self) -> None:
        number = len(self.answers) + 1
        is_late = self._order.random() < 0.2
        if number <= self._no_until and not is_late:
            self.answers.append(False)
            return
        told = self._advice.answer(self._rank, Question(number, ahead=self._order.choice([0, 1, 3, 20])))
        self._no_until = told.no_until
        self.answers.append(told.is_due)


def test_all_ranks_have_the_same_answers_whatever_they_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for seed in range(200):
        order = random.Random(seed)
        budget = CheckpointBudget(0.03)
        budget.attempt_starts(now[0])
        advice = Advice(budget)
        ranks = [Rank(rank, advice, order) for rank in range(3)]
        saved = 0
        for turn in range(300):
            now[0] += order.random() * ALONE_S
            if turn == 200:
                advice.preempt(NOTICE)
            ranks[order.choice([0, 0, 1, 2] if seed % 2 else [0, 1, 1, 2])].asks()
            if (told := sum(ranks[0].answers)) > saved and advice.notice is None:
                saved = told
                budget.reported(turn, now[0])
                budget.stored(turn, now[0])
        assert saved > 1
        shortest = min(len(rank.answers) for rank in ranks)
        assert len({tuple(rank.answers[:shortest]) for rank in ranks}) == 1
