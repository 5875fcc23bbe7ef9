"""The session functions: inside a worker, outside a run, and in a child of a worker."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from paceline.air import session
from paceline.air.checkpoint import Checkpoint
from paceline.air.context import get_context
from paceline.air.errors import MetricError, SessionMisuseError
from paceline.air.resources import PlacementGroupFactory
from paceline.train import legacy_session

DEFAULTS: dict[str, Any] = {
    "get_checkpoint": None,
    "get_dataset_shard": None,
    "get_experiment_name": None,
    "get_local_rank": 0,
    "get_local_world_size": 0,
    "get_metadata": None,
    "get_node_rank": 0,
    "get_trial_dir": None,
    "get_trial_id": None,
    "get_trial_name": None,
    "get_trial_resources": None,
    "get_world_rank": 0,
    "get_world_size": 1,
}


class RecordingSession:
    world_rank, world_size, local_rank, local_world_size, node_rank = 5, 8, 1, 4, 1
    trial_name, trial_id, trial_dir, experiment_name = "T_1", "1", "/results/x/T_1", "x"
    trial_resources: dict[str, Any] = {"bundles": [{"CPU": 1.0}], "strategy": "PACK"}
    metadata: dict[str, Any] = {"note": 1}

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: Checkpoint | None = None,
        reduce: Mapping[str, str] | None = None,
    ) -> dict[str, float] | None:
        self.calls.append((metrics, checkpoint, reduce))
        return {"loss": 1.0} if reduce else None

    def get_checkpoint(self) -> Checkpoint | None:
        return Checkpoint.from_dict({"epoch": 2})

    def get_dataset_shard(self, name: str | None = None) -> Any:
        return f"shard of {name}"


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(session, "_warned", set())
    session.install(None)
    yield
    session.install(None)


@pytest.fixture
def installed() -> RecordingSession:
    recording = RecordingSession()
    session.install(recording)
    return recording


@pytest.mark.parametrize("name", DEFAULTS)
def test_outside_a_run_each_function_warns_once_and_gives_its_default(name: str) -> None:
    function = getattr(session, name)
    with pytest.warns(UserWarning, match=rf"session\.{name}\(\) was called outside") as caught:
        assert function() == DEFAULTS[name]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert function() == DEFAULTS[name]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: legacy_session.report(loss=1), "train.report()"),
        (lambda: legacy_session.save_checkpoint(epoch=1), "train.save_checkpoint()"),
        (lambda: legacy_session.world_rank(), "train.world_rank()"),
        (lambda: get_context().get_world_size(), "train.get_context().get_world_size()"),
        (lambda: session.report({}), "session.report()"),
    ],
)
def test_the_warning_names_the_function_as_it_was_called(call: Callable[[], object], name: str) -> None:
    with pytest.warns(UserWarning, match=f"^{re.escape(name)} was called outside") as caught:
        call()
    assert [warning.filename for warning in caught] == [__file__]


def test_reduce_must_be_a_dict(installed: RecordingSession) -> None:
    with pytest.raises(MetricError, match=r"reduce takes a dict such as \{'loss': 'mean'\}"):
        session.report({"loss": 1.0}, reduce="mean")  # type: ignore[arg-type]
    assert not installed.calls


def test_f12_report_outside_a_run_does_nothing() -> None:
    with pytest.warns(UserWarning, match="report"):
        session.report({"loss": 1})
    assert session.current() is None


def test_inside_a_run(installed: RecordingSession) -> None:
    assert session.current() is installed
    assert [session.get_world_rank(), session.get_world_size(), session.get_local_rank()] == [5, 8, 1]
    assert [session.get_local_world_size(), session.get_node_rank()] == [4, 1]
    assert [session.get_trial_name(), session.get_trial_id(), session.get_trial_dir()] == ["T_1", "1", "/results/x/T_1"]
    assert session.get_experiment_name() == "x"
    assert session.get_metadata() == {"note": 1}
    assert session.get_trial_resources() == PlacementGroupFactory([{"CPU": 1}])
    assert session.get_dataset_shard("train") == "shard of train"
    checkpoint = session.get_checkpoint()
    assert checkpoint is not None
    assert checkpoint.to_dict() == {"epoch": 2}


def test_report_is_handed_over(installed: RecordingSession) -> None:
    checkpoint = Checkpoint.from_dict({})
    assert session.report({"a": 1}) is None
    session.report({"a": 2}, checkpoint=checkpoint)
    assert session.report({"loss": 3.0}, reduce={"loss": "mean"}) == {"loss": 1.0}
    assert installed.calls == [
        ({"a": 1}, None, None),
        ({"a": 2}, checkpoint, None),
        ({"loss": 3.0}, None, {"loss": "mean"}),
    ]


def test_the_context_tells_the_same(installed: RecordingSession) -> None:
    context = get_context()
    for name in DEFAULTS.keys() - {"get_checkpoint", "get_dataset_shard"}:
        assert getattr(context, name)() == getattr(session, name)()


@pytest.mark.parametrize(
    "call",
    [lambda: session.report({"a": 1}), lambda: session.get_checkpoint(), lambda: session.get_dataset_shard("train")],
)
def test_f12_a_forked_child_may_ask_who_it_is_but_not_use_the_channel(
    installed: RecordingSession, call: Callable[[], object]
) -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            assert session.get_world_rank() == 5
            call()
            answer = "no error"
        except SessionMisuseError as error:
            answer = str(error)
        os.write(write_end, answer.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = pipe.read()
    assert f"in process {child}, a child of the worker process {os.getpid()}" in answer
    session.report({"a": 2})
    assert installed.calls == [({"a": 2}, None, None)]
