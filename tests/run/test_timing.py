"""Where a rank's time goes. The clock of these tests stands still unless they move it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline.air import Checkpoint
from paceline.run import timing
from paceline.run.history import JournalHistory
from paceline.run.messages import Answer, Met, ToWorker
from paceline.run.session import Session
from paceline.run.timing import ALWAYS, RankClock, StepTimes, sum_of
from tests.run.fake_channel import FakeChannel, session_setup
from tests.run.test_history import attempt, row, write


class Time:
    """What the clock reads; in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> float:
        self.now += seconds
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    moved = Time()
    monkeypatch.setattr(timing, "perf_counter", moved)
    return moved


def take_batch(clock: RankClock, time: Time, seconds: float) -> None:
    clock.took_batch(time.now, time.passes(seconds))


def test_a_step_is_the_time_between_two_batches(time: Time) -> None:
    clock = RankClock()
    time.passes(60)  # setting up is not a step, and neither is waiting for the first batch
    take_batch(clock, time, 5)
    time.passes(1)
    assert clock.reporting() is None
    take_batch(clock, time, 0.25)
    time.passes(1)
    assert clock.reporting() == StepTimes(1, 1_250_000, 250_000)
    take_batch(clock, time, 0.5)
    time.passes(2)
    take_batch(clock, time, 0)
    assert clock.reporting() == StepTimes(2, 3_500_000, 500_000)


def test_without_batches_a_step_is_the_time_between_two_reports(time: Time) -> None:
    clock = RankClock()
    time.passes(60)
    assert clock.reporting() is None
    time.passes(2)
    assert clock.reporting() == StepTimes(1, 2_000_000)


def test_data_that_was_read_before_the_loop_does_not_make_its_steps(time: Time) -> None:
    clock = RankClock()
    for _ in range(3):
        take_batch(clock, time, 1)
    assert clock.reporting() == StepTimes(2, 2_000_000, 2_000_000)
    for _ in range(2):
        time.passes(3)
        assert clock.reporting() == StepTimes(1, 3_000_000)
    take_batch(clock, time, 1)  # no time is counted twice
    assert clock.reporting() == StepTimes(1, 1_000_000, 1_000_000)


def test_waits_belong_to_the_step_in_which_they_happen(time: Time) -> None:
    clock = RankClock()
    clock.waited_for_ranks(9)  # before the first step
    take_batch(clock, time, 0)
    clock.reporting()
    time.passes(0.5)
    clock.reported(with_checkpoint=True)
    clock.waited_for_data(0.125)
    clock.waited_for_ranks(0.25)
    time.passes(0.375)
    take_batch(clock, time, 0.125)
    times = clock.reporting()
    assert times == StepTimes(1, 1_000_000, 250_000, 250_000, 500_000)
    assert times.own_s == 0.25
    assert list(times.per_step().values())[:4] == [1.0, 0.25, 0.25, 0.5]
    assert math.isnan(times.per_step()["collective_wait_s"])


def test_time_in_the_debugger_is_nobodys(time: Time) -> None:
    clock = RankClock()
    clock.stood_still(5)  # before the first step
    clock.reporting()
    time.passes(61)
    clock.stood_still(60)
    assert clock.reporting() == StepTimes(1, 1_000_000)


def test_what_a_framework_knows_of_its_collectives(time: Time) -> None:
    asked: list[int] = []

    def ask(steps: int) -> float | None:
        asked.append(steps)
        return None if steps == 2 else 0.25

    clock = RankClock()
    clock.measure_collectives(ask)
    measured = []
    for _ in range(4):
        take_batch(clock, time, 0)
        time.passes(1)
        measured.append(clock.reporting())
    assert asked == [1, 2, 3]
    assert measured[1:] == [
        StepTimes(1, 1_000_000, collective_us=250_000, collective_steps=1),
        StepTimes(1, 1_000_000),
        StepTimes(1, 1_000_000, collective_us=250_000, collective_steps=1),
    ]
    both = sum_of(*(each for each in measured[2:] if each is not None))
    assert both.per_step()["collective_wait_s"] == 0.25
    assert both.own_s == 0.75
    for _ in range(ALWAYS + 30):  # it is not asked all the time
        time.passes(0.25)
        clock.reporting()
    assert len(asked) < ALWAYS + 10


def test_reports_in_quick_succession_share_a_measurement(time: Time) -> None:
    clock = RankClock()
    seen = []
    for _ in range(ALWAYS + 41):
        time.passes(0.0005)
        seen.append(clock.reporting())
    assert seen[1 : ALWAYS + 1] == [StepTimes(1, 500)] * ALWAYS
    rest = [each for each in seen[ALWAYS + 1 :] if each is not None]
    assert sum(each.steps for each in rest) >= 30
    assert 3 <= len(rest) <= 4
    assert all(each.step_us == 500 * each.steps for each in rest)


def test_sums() -> None:
    assert sum_of(StepTimes(1, 20, 3, 4, 5, 6, 7), StepTimes(2, 40, 6, 8, 10)) == StepTimes(3, 60, 9, 12, 15, 6, 7)


# -- in a session ----------------------------------------------------------------------------------


def test_a_report_that_waits_for_nothing_does_not_wait(tmp_path: Path, time: Time) -> None:
    channel = FakeChannel()
    session = Session(session_setup(tmp_path), channel, None)
    for _ in range(3):
        time.passes(1)
        session.report({})
    assert [report.times for report in channel.reports] == [None, StepTimes(1, 1_000_000), StepTimes(1, 1_000_000)]


def test_waiting_for_an_answer_is_measured(tmp_path: Path, time: Time) -> None:
    def answer(channel: FakeChannel) -> ToWorker:
        time.passes(0.5)
        return Answer(channel.reports[-1].index)

    channel = FakeChannel(answer)
    session = Session(session_setup(tmp_path, decides=True), channel, None)
    for _ in range(2):
        time.passes(1)
        session.report({})
    assert channel.reports[1].times == StepTimes(1, 1_500_000, 0, 500_000)


def test_a_checkpoint_is_measured(tmp_path: Path, time: Time) -> None:
    def answer(channel: FakeChannel) -> ToWorker:
        time.passes(0.5)
        return Answer(channel.reports[-1].index)

    channel = FakeChannel(answer)
    session = Session(session_setup(tmp_path), channel, None)
    session.report({}, Checkpoint.from_dict({"a": 1}))
    time.passes(1)
    session.report({})
    assert channel.reports[1].times == StepTimes(1, 1_500_000, 0, 0, 500_000)


def test_meeting_the_other_ranks_is_measured(tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", time)

    def answer(channel: FakeChannel) -> ToWorker:
        time.passes(0.5)
        return Met(1)

    channel = FakeChannel(answer)
    session = Session(session_setup(tmp_path), channel, None)
    session.report({})
    session.meet("barrier()")
    session.report({})
    assert channel.reports[1].times == StepTimes(1, 500_000, 0, 500_000)


# -- in the result ---------------------------------------------------------------------------------


def test_times_are_columns_of_every_ranks_rows(tmp_path: Path) -> None:
    own = {"n": 7, "step_time_s": "mine"}
    run_dir = write(
        tmp_path, attempt(0), row(1), row(2, times=[4, 2_000_000, 1_000_000]), row(3, metrics=own, times=[1, 5])
    )
    history = JournalHistory(run_dir.journal)
    first, second, third = history.rank_rows()
    assert math.isnan(first["step_time_s"])
    assert math.isnan(first["checkpoint_wait_s"])
    assert (second["step_time_s"], second["data_wait_s"], second["report_wait_s"]) == (0.5, 0.25, 0.0)
    assert third["step_time_s"] == "mine"
    assert history.last_rank_metrics()[0] == own
    assert not any("data_wait_s" in each for each in history.rows())
