"""Which rank is called slow, when, and how often."""

from __future__ import annotations

import random

import pytest

from paceline.run.stragglers import LEAST_SAMPLES, LEAST_STEPS, Slow, Stragglers
from paceline.run.timing import StepTimes


def step(seconds: float, data: float = 0, report: float = 0, collective: float | None = None) -> StepTimes:
    times = [round(1e6 * part) for part in (seconds, data, report)]
    return StepTimes(1, *times, 0, *((round(1e6 * collective), 1) if collective is not None else ()))


def feed(ranks: Stragglers, steps: int, *each: StepTimes) -> list[tuple[int, Slow]]:
    """(after which step, what was said), if each rank measures the same in all steps."""
    found = ((number, ranks.measured(rank, times)) for number in range(steps) for rank, times in enumerate(each))
    return [(number + 1, said) for number, said in found if said is not None]


def test_a_rank_that_sleeps_is_named_within_ten_steps() -> None:
    (when, slow), *rest = feed(Stragglers(2), 100, step(0.002), step(0.052))
    assert not rest
    assert LEAST_SAMPLES <= when < 10
    assert (slow.rank, slow.cause) == (1, "work")
    assert slow.ratio == pytest.approx(26)
    assert str(slow).startswith("rank 1 is 26.0x slower than the others (")
    assert str(slow).endswith("; it is not waiting for data.")


def test_the_message_says_how_much_is_due_to_data() -> None:
    ((_, slow),) = feed(Stragglers(4), 20, *[step(0.025)] * 2, step(0.0575, data=0.026), step(0.025))
    assert slow.rank == 2
    assert str(slow) == (
        "rank 2 is 2.3x slower than the others (58 ms per step, the others 25 ms); "
        "80 % of the difference is waiting for data."
    )


def test_ranks_that_wait_for_each_other_in_reports_have_equal_steps() -> None:
    ((_, slow),) = feed(Stragglers(2), 20, step(0.06, report=0.05), step(0.06))
    assert (slow.rank, slow.ratio) == (1, pytest.approx(6))


def test_ranks_that_wait_for_each_other_in_collectives_have_equal_steps() -> None:
    ((_, slow),) = feed(Stragglers(2), 20, step(0.06, collective=0.05), step(0.06, collective=0.001))
    assert (slow.rank, slow.ratio) == (1, pytest.approx(5.9))


def test_one_unusual_step_of_the_others_does_not_hide_a_slow_rank() -> None:
    """As DDP measures it: in the second iteration it does not see that ranks wait for each other."""
    ranks = Stragglers(2)
    feed(ranks, 1, step(0.06, collective=0.055), step(0.06, collective=0.006))
    feed(ranks, 1, step(0.053, collective=0.004), step(0.053, collective=0.004))
    ((_, slow),) = feed(ranks, 7, step(0.053, collective=0.052), step(0.053, collective=0.0005))
    assert slow.rank == 1
    assert slow.others_s < 0.005


def test_steps_whose_collectives_were_not_measured_say_nothing() -> None:
    """PyTorch measures one iteration in a hundred: what lies between does not interrupt a series."""
    ranks = Stragglers(2)
    said = []
    for _ in range(LEAST_STEPS + LEAST_SAMPLES):
        said += feed(ranks, 1, step(0.1, collective=0.08), step(0.1, collective=0.0))
        said += feed(ranks, 99, step(0.1), step(0.1))
    assert [slow.rank for _, slow in said] == [1]


def test_one_odd_measurement_is_not_carried_on() -> None:
    ranks = Stragglers(2)
    assert not feed(ranks, 1, step(0.1, collective=0.08), step(0.1, collective=0.0))
    assert not feed(ranks, 99, step(0.1), step(0.1))


def test_a_rank_that_waits_for_data_is_seen_although_steps_are_equal() -> None:
    """Nobody measures the collectives of most frameworks."""
    ((when, slow),) = feed(Stragglers(2), 30, step(0.06), step(0.06, data=0.045))
    assert when < 10
    assert (slow.rank, slow.cause) == (1, "data")
    assert "rank 1 keeps the other ranks waiting: it waits 45 ms longer for the data of each step" in str(slow)


def test_equal_ranks_that_all_wait_for_data() -> None:
    assert not feed(Stragglers(3), 50, *[step(0.1, data=0.09)] * 3)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_alarm(seed: int) -> None:
    """Steps vary by a factor of two, and one in twenty takes ten times as long."""
    dice = random.Random(seed)
    ranks = Stragglers(4)
    for _ in range(2000):
        for rank in range(4):
            seconds = 0.02 * dice.uniform(1, 2) * (10 if dice.random() < 0.05 else 1)
            assert ranks.measured(rank, step(seconds)) is None


def test_a_pause_is_no_alarm() -> None:
    """Rank 0 evaluates, or saves something, once in a while."""
    ranks = Stragglers(2)
    for _ in range(20):
        assert not feed(ranks, 1, step(2.0), step(0.01))
        assert not feed(ranks, 30, step(0.01), step(0.01))


def test_short_steps_are_not_judged_one_by_one() -> None:
    ranks = Stragglers(2)
    assert not feed(ranks, 100, step(0.0001), step(0.0002))
    assert [slow.rank for _, slow in feed(ranks, 5000, step(0.0001), step(0.0002))] == [1]


def test_time_that_hardly_matters_is_not_mentioned() -> None:
    """All ranks wait for the driver nearly all the time."""
    assert not feed(Stragglers(2), 1000, step(0.05, report=0.049), step(0.05, report=0.046))


def test_the_same_is_said_once_and_again_when_it_changes() -> None:
    ranks = Stragglers(2)
    assert len(feed(ranks, 200, step(0.01), step(0.03))) == 1
    assert not feed(ranks, 200, step(0.01), step(0.04))
    ((_, slow),) = feed(ranks, 200, step(0.01), step(0.08))
    assert 6 <= slow.ratio <= 8
    ((_, slow),) = feed(ranks, 200, step(0.01), step(0.08, data=0.07))
    assert slow.cause == "data"


def test_a_rank_that_has_finished_early_is_compared_with() -> None:
    ranks = Stragglers(2)
    for _ in range(5):
        ranks.measured(0, step(0.0001))
    assert [ranks.measured(1, step(0.06)) is not None for _ in range(6)].count(True) == 1


def test_one_rank_is_never_slow() -> None:
    assert not feed(Stragglers(1), 100, step(1))
