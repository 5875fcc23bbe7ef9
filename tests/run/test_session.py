"""The worker's half of report(): when it waits, what it sends, when it refuses."""

from __future__ import annotations

import re
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint
from paceline.air.errors import MetricError, SessionMisuseError, StopTraining
from paceline.run.debug_messages import Pause
from paceline.run.messages import Acknowledged, Answer, Hold, Warned
from paceline.run.session import Session
from tests.air.damage import committed
from tests.run.fake_channel import FakeChannel, session_setup


def decide(stop: bool = False, **facts: Any) -> FakeChannel:
    """A driver that answers each report as soon as it waits."""
    return FakeChannel(lambda channel: Answer(channel.reports[-1].index, stop, **facts))


def test_a_plain_report_does_not_wait(tmp_path: Path) -> None:
    channel = FakeChannel()
    session = Session(session_setup(tmp_path, start_index=4), channel, None)
    assert session.report({"loss": 1.5}) is None
    assert session.report({"loss": float("nan")}) is None
    first, second = channel.reports
    assert (first.index, first.metrics, first.waits, first.finite) == (5, {"loss": 1.5}, False, True)
    assert (second.index, second.finite) == (6, False)
    assert session.reports == 2


def test_rows_are_stamped_by_the_clock_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock of a worker elsewhere may be off, and its monotonic clock may begin anywhere."""
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    channel = FakeChannel()
    session = Session(session_setup(tmp_path, wall_offset_s=-100.0), channel, None)
    session.report({"loss": 1.5})
    (report,) = channel.reports
    assert report.stamp == 900.0
    assert 0 <= report.elapsed < 60


@pytest.mark.parametrize(
    ("setup", "arguments"),
    [
        ({"decides": True}, {}),
        ({}, {"reduce": {"loss": "mean"}}),
        ({}, {"checkpoint": Checkpoint.from_dict({"a": 1})}),
    ],
    ids=["somebody may stop the run", "reduction", "checkpoint"],
)
def test_a_report_that_somebody_decides_on_waits(
    tmp_path: Path, setup: dict[str, Any], arguments: dict[str, Any]
) -> None:
    channel = decide()
    Session(session_setup(tmp_path, **setup), channel, None).report({"loss": 1}, **arguments)
    assert channel.reports[0].waits


def test_a_hold_makes_every_later_report_wait(tmp_path: Path) -> None:
    channel = decide()
    session = Session(session_setup(tmp_path), channel, None)
    session.report({})
    channel.inbox.append(Hold())
    session.report({})
    session.report({})
    assert [report.waits for report in channel.reports] == [False, True, True]


def test_a_rank_runs_ahead_only_within_its_window(tmp_path: Path) -> None:
    waited_at: list[int] = []

    def acknowledge(channel: FakeChannel) -> Acknowledged:
        waited_at.append(channel.reports[-1].index)
        return Acknowledged(channel.reports[-1].index - 1)

    session = Session(session_setup(tmp_path, window=3), FakeChannel(acknowledge), None)
    for _ in range(7):
        session.report({})
    assert waited_at == [3, 5, 7]


def test_a_rank_that_starts_late_begins_where_the_others_began(tmp_path: Path) -> None:
    """Rank 0's background checkpoints are committed before this rank has reported anything."""
    committed(Checkpoint.from_dict({"step": 4}), tmp_path / "checkpoint_000000")
    channel = FakeChannel()
    start = Checkpoint.from_dict({"step": 3})
    session = Session(session_setup(tmp_path, world_rank=1, world_size=2, async_save=True), channel, start)
    channel.inbox.append(Acknowledged(0, 1))
    assert session.get_checkpoint() is start
    session.report({})
    newest = session.get_checkpoint()
    assert newest is not None
    assert newest.to_dict()["step"] == 4


def test_a_stop_is_raised_after_the_row_and_no_report_follows(tmp_path: Path) -> None:
    channel = decide(stop=True)
    session = Session(session_setup(tmp_path, decides=True), channel, None)
    with pytest.raises(StopTraining, match="report 1"):
        session.report({"loss": 1})
    with pytest.raises(StopTraining):
        session.report({"loss": 2})
    assert len(channel.reports) == 1
    assert not issubclass(StopTraining, Exception)  # `except Exception` in user code must not swallow it


def test_reduced_values_come_back(tmp_path: Path) -> None:
    session = Session(session_setup(tmp_path), decide(reduced={"loss": 2.5}), None)
    assert session.report({"loss": 1}, reduce={"loss": "mean"}) == {"loss": 2.5}


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        (({"loss": object()},), MetricError, "'loss'"),
        (([1, 2],), MetricError, "dict"),
        (({}, {"weights": 1}), SessionMisuseError, r"Checkpoint.from_dict"),
        (({}, "/some/where"), SessionMisuseError, "not str"),
        (({"loss": "low"}, Checkpoint.from_dict({})), MetricError, "checkpoint_score_attribute 'loss'"),
        (({"loss": 1}, None, {"loss": "median"}), MetricError, "mean"),
    ],
)
def test_what_cannot_be_reported_is_refused_and_does_not_count(
    tmp_path: Path, arguments: tuple[Any, ...], error: type[Exception], told: str
) -> None:
    channel = FakeChannel()
    session = Session(session_setup(tmp_path, score_attribute="loss"), channel, None)
    with pytest.raises(error, match=told):
        session.report(*arguments)
    assert channel.sent == []
    assert session.reports == 0


def test_after_the_function_has_returned_a_report_is_refused(tmp_path: Path) -> None:
    session = Session(session_setup(tmp_path), FakeChannel(), None)
    session.end()
    with pytest.raises(SessionMisuseError, match=r"report\(\).*train function"):
        session.report({})


def test_the_checkpoint_it_started_from_until_there_is_a_newer_one(tmp_path: Path) -> None:
    resume = Checkpoint.from_dict({"epoch": 7})
    session = Session(session_setup(tmp_path), decide(), resume)
    assert session.get_checkpoint() is resume
    session.report({})
    assert session.get_checkpoint() is resume


def test_an_unknown_shard_is_none_and_a_warning_of_the_result(tmp_path: Path) -> None:
    channel = FakeChannel()
    session = Session(session_setup(tmp_path), channel, None)
    session.shards = {"train": [1], "valid": [2]}
    for _ in range(3):  # once is enough
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert session.get_dataset_shard("trian") is None
    (warned,) = channel.sent
    assert isinstance(warned, Warned)
    assert re.search(r"'trian'.*'train', 'valid'.*mean train", warned.text)


def test_shards_by_name(tmp_path: Path) -> None:
    session = Session(session_setup(tmp_path), FakeChannel(), None)
    with pytest.warns(UserWarning, match="datasets="):
        assert session.get_dataset_shard() is None
    session.shards = {"train": [1]}
    assert session.get_dataset_shard() == session.get_dataset_shard("train") == [1]
    session.shards["valid"] = [2]
    with pytest.warns(UserWarning, match=r"'other'.*'train', 'valid'"):
        assert session.get_dataset_shard("other") is None
    with pytest.raises(RuntimeError, match="train, valid"):
        session.get_dataset_shard()


def test_a_rank_waits_in_report_while_another_one_is_in_the_debugger(tmp_path: Path) -> None:
    told: list[int] = []

    def release(channel: FakeChannel) -> Pause:
        told.append(len(channel.reports))
        return Pause(on=False)

    channel = FakeChannel(release)
    session = Session(session_setup(tmp_path), channel, None)
    channel.inbox.append(Pause(on=True))
    session.report({"loss": 1.0})
    session.report({"loss": 0.5})
    assert told == [0], "it waited once, before it sent anything"
    assert len(channel.reports) == 2
