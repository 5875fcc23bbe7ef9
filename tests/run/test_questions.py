"""The worker's half of should_checkpoint() and preempted()."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from paceline.air import Checkpoint, session
from paceline.air.errors import SessionMisuseError, StopTraining
from paceline.run.messages import ALONE_S, Answer, Hold, Notice, Question, Told
from paceline.run.session import Session
from tests.run.fake_channel import FakeChannel, session_setup

NOTICE = Notice("SIGTERM to rank 1", 5000.0)


def driver(*, is_due: bool = False, notice: Notice | None = None, stop: bool = False) -> FakeChannel:
    """One that answers whatever the session waits for."""

    def answer(channel: FakeChannel) -> Answer | Told:
        last = channel.sent[-1]
        if isinstance(last, Question):
            return Told(last.number, last.of_preemption, is_due, notice)
        return Answer(channel.reports[-1].index, stop)

    return FakeChannel(answer)


def test_questions_are_numbered_by_what_they_ask(tmp_path: Path) -> None:
    channel = driver()
    asking = Session(session_setup(tmp_path), channel, None)
    assert not asking.should_checkpoint()
    assert not asking.should_checkpoint()
    assert asking.preempted() is None
    questions = [message for message in channel.sent if isinstance(message, Question)]
    assert [(each.number, each.of_preemption) for each in questions] == [(1, False), (2, False), (1, True)]


def test_the_answer_to_a_call_that_was_broken_off_is_not_that_to_the_next(tmp_path: Path) -> None:
    """A handler of the user's for SIGALRM may raise while the rank waits."""

    class TimeIsUpError(Exception):
        pass

    def answer(channel: FakeChannel) -> Told:
        (*_, last) = channel.sent
        assert isinstance(last, Question)
        if last.number == 1 and not late:
            late.append(Told(1, False, True))
            raise TimeIsUpError
        return late.pop() if late else Told(last.number, last.of_preemption)

    late: list[Told] = []
    asking = Session(session_setup(tmp_path), FakeChannel(answer), None)
    with pytest.raises(TimeIsUpError):
        asking.should_checkpoint()
    assert not asking.should_checkpoint()
    assert not late


def test_a_preemption_comes_with_its_deadline_by_the_clock_of_the_worker(tmp_path: Path) -> None:
    asking = Session(session_setup(tmp_path, wall_offset_s=-100.0), driver(is_due=True, notice=NOTICE), None)
    preemption = asking.preempted()
    assert preemption is not None
    assert (preemption.reason, preemption.deadline) == ("SIGTERM to rank 1", 5100.0)
    assert preemption.seconds_left == 0.0


def test_a_rank_that_was_told_of_a_preemption_waits_for_the_decision_on_each_report(tmp_path: Path) -> None:
    channel = driver(is_due=True, notice=NOTICE, stop=True)
    asking = Session(session_setup(tmp_path), channel, None)
    asking.report({"loss": 1.0})
    assert asking.should_checkpoint()
    with pytest.raises(StopTraining):
        asking.report({"loss": 1.0})
    assert [report.waits for report in channel.reports] == [False, True]
    with pytest.raises(StopTraining):
        asking.should_checkpoint()


def test_a_rank_that_is_told_to_save_for_the_budget_runs_on(tmp_path: Path) -> None:
    channel = driver(is_due=True)
    asking = Session(session_setup(tmp_path), channel, None)
    assert asking.should_checkpoint()
    asking.report({"loss": 1.0})
    assert not channel.reports[-1].waits


def test_what_checkpoints_cost_the_loop_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the answer to the end of the report, and the wait for the answer; nothing else."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    costs = {"question": 1.0, "report": 10.0}

    def answer(channel: FakeChannel) -> Answer | Told:
        last = channel.sent[-1]
        now[0] += costs["question" if isinstance(last, Question) else "report"]
        return Told(last.number, is_due=last.number == 2) if isinstance(last, Question) else Answer(1)

    channel = FakeChannel(answer)
    asking = Session(session_setup(tmp_path), channel, None)
    assert not asking.should_checkpoint()
    now[0] += 1000.0  # a step
    assert asking.should_checkpoint()
    now[0] += 100.0  # the snapshot
    asking.report({"loss": 1.0}, checkpoint=Checkpoint.from_dict({"step": 1}))
    now[0] += 1000.0
    asking.report({"loss": 1.0})
    asking.should_checkpoint()
    questions = [message for message in channel.sent if isinstance(message, Question)]
    assert [(each.saving_s, each.asking_s) for each in questions] == [(0.0, 0.0), (0.0, 1.0), (110.0, 2.0)]


def test_other_work_between_the_answer_and_the_checkpoint_is_not_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A validation, the debugger, and waiting for the values of other ranks."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def answer(channel: FakeChannel) -> Answer | Told:
        last = channel.sent[-1]
        if isinstance(last, Question):
            return Told(last.number, is_due=True)
        now[0] += 500.0  # another rank is slow
        return Answer(1, reduced={"loss": 1.0})

    asking = Session(session_setup(tmp_path, async_save=True), FakeChannel(answer), None)
    asking.should_checkpoint()
    now[0] += 1000.0  # the validation
    asking.snapshot_begins()
    now[0] += 10.0
    asking.snapshot_ends()
    now[0] += 1000.0
    saved = Checkpoint.from_dict({"step": 1})
    asking.report({"loss": 1.0}, checkpoint=saved, reduce={"loss": "sum"})
    assert asking.questions.saving_s == 10.0
    asking.should_checkpoint()
    now[0] += 107.0
    asking.clock.stood_still(100.0)
    asking.report({"loss": 1.0}, checkpoint=saved)
    assert asking.questions.saving_s == 17.0
    asking.end()


def test_no_is_answered_without_the_driver_as_long_as_it_has_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the pace that the rank has, and not for longer, were its steps to become slower."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def answer(channel: FakeChannel) -> Told:
        (*_, last) = channel.sent
        assert isinstance(last, Question)
        return Told(last.number, last.of_preemption, no_until=last.number + last.ahead)

    channel = FakeChannel(answer)
    asking = Session(session_setup(tmp_path), channel, None)
    for _ in range(30):
        assert not asking.should_checkpoint()
        now[0] += ALONE_S / 10.5
    questions = [message for message in channel.sent if isinstance(message, Question)]
    assert [(each.number, each.ahead) for each in questions] == [(1, 0), (2, 10), (13, 10), (24, 10)]
    now[0] += 10 * ALONE_S
    asking.should_checkpoint()
    asking.should_checkpoint()
    assert [each.number for each in channel.sent if isinstance(each, Question)] == [1, 2, 13, 24, 31, 32]


def test_a_rank_asks_again_when_something_is_about_to_happen(tmp_path: Path) -> None:
    """A preemption makes all reports wait, and so each rank hears of it at its next one."""

    def answer(channel: FakeChannel) -> Answer | Told:
        (*_, last) = channel.sent
        if not isinstance(last, Question):
            return Answer(1)
        if last.of_preemption:
            return Told(last.number, True, is_due=True, notice=NOTICE)
        return Told(last.number, no_until=1000)

    channel = FakeChannel(answer)
    asking = Session(session_setup(tmp_path), channel, None)
    for _ in range(3):
        asking.should_checkpoint()
    assert len(channel.sent) == 1
    channel.inbox.append(Hold(True))
    asking.report({"loss": 1.0})
    asking.should_checkpoint()
    assert isinstance(channel.sent[-1], Question)
    assert channel.sent[-1].number == 4
    assert asking.preempted() is not None
    asking.should_checkpoint()
    assert [each.number for each in channel.sent if isinstance(each, Question)] == [1, 4, 1, 5]


def test_nobody_can_be_asked_after_the_end(tmp_path: Path) -> None:
    asking = Session(session_setup(tmp_path), driver(), None)
    asking.end()
    with pytest.raises(SessionMisuseError, match=r"preempted\(\) was called after"):
        asking.preempted()


def test_outside_of_a_run(recwarn: pytest.WarningsRecorder) -> None:
    session._warned.difference_update({"train.should_checkpoint()", "train.preempted()"})
    assert [session.should_checkpoint(), session.should_checkpoint(), session.preempted()] == [False, False, None]
    texts = [str(warning.message) for warning in recwarn]
    assert len(texts) == 2
    assert "should_checkpoint() was called outside a training run and returns False" in texts[0]
