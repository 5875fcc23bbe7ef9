"""One answer to the n-th question of all ranks."""

from __future__ import annotations

import random

from paceline.run.advice import Advice
from paceline.run.messages import Notice, Question, Told

NOTICE = Notice("SIGTERM to rank 1", 1000.0)


def test_nothing_is_due_by_default() -> None:
    advice = Advice()
    assert advice.answer(0, Question(1)) == Told(1)
    assert advice.answer(0, Question(1, of_preemption=True)) == Told(1, of_preemption=True)
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
    assert advice.answer(0, Question(1, of_preemption=True)).notice == NOTICE
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
