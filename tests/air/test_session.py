"""The session functions: inside a worker, outside a run, and in a child of a worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from paceline.air import session
from paceline.air.checkpoint import Checkpoint
from paceline.air.context import get_context
from paceline.air.errors import MetricError, SessionMisuseError
from paceline.air.resources import PlacementGroupFactory

DEFAULTS: dict[str, Any] = {
    "get_checkpoint": None,
    "get_dataset_shard": None,
    "get_experiment_name": None,
    "get_local_rank": 0,
    "get_local_world_size": 0,
    "get_metadata": None,
    "get_node_rank": 0,
    "get_previous_world_size": None,
    "get_trial_dir": None,
    "get_trial_id": None,
    "get_trial_name": None,
    "get_trial_resources": None,
    "get_world_rank": 0,
    "get_world_size": 1,
}


class RecordingSession:
    world_rank, world_size, local_rank, local_world_size, node_rank = 5, 8, 1, 4, 1
    is_elastic, previous_world_size = True, 6
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
        validation: Any = None,
    ) -> dict[str, float] | None:
        self.calls.append((metrics, checkpoint, reduce, *([] if validation is None else [validation])))
        return {"loss": 1.0} if reduce else None

    def get_checkpoint(self) -> Checkpoint | None:
        return Checkpoint.from_dict({"epoch": 2})

    def get_dataset_shard(self, name: str | None = None) -> Any:
        return f"shard of {name}"


@pytest.fixture(autouse=True)
def no_session() -> Iterator[None]:
    session.install(None)
    yield
    session.install(None)


@pytest.fixture
def installed() -> RecordingSession:
    recording = RecordingSession()
    session.install(recording)
    return recording


CALLS: dict[str, str] = {
    "train.report()": "functions.report(loss=1)",
    "train.save_checkpoint()": "functions.save_checkpoint(epoch=1)",
    "train.world_rank()": "functions.world_rank()",
    "train.get_context().get_world_size()": "get_context().get_world_size()",
    "session.report()": "session.report({'loss': 1})",
    **{f"session.{name}()": f"session.{name}()" for name in DEFAULTS},
}
"""What a function is called in a warning -> a call of it."""

OUTSIDE = """
import json, sys, warnings
from paceline.air import session
from paceline.air.context import get_context
from paceline.train import functions

told = {}
for name, call in json.loads(sys.argv[1]).items():
    told[name] = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = eval(compile(call, "the_users_file.py", "eval"))
        told[name].append([value, [[warning.filename, str(warning.message)] for warning in caught]])
print(json.dumps([told, session.current() is None]))
"""


@pytest.fixture(scope="module")
def outside() -> dict[str, Any]:
    """Two calls of each function in a process without a run: their values and warnings, which come once per process."""
    script = [sys.executable, "-c", OUTSIDE, json.dumps(CALLS)]
    told, no_session = json.loads(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    assert no_session
    return dict(told)


@pytest.mark.parametrize("name", DEFAULTS)
def test_outside_a_run_each_function_gives_its_default(name: str, outside: dict[str, Any]) -> None:
    assert [value for value, _ in outside[f"session.{name}()"]] == [DEFAULTS[name]] * 2


@pytest.mark.parametrize("name", CALLS)
def test_outside_a_run_each_function_warns_once_named_as_it_was_called(name: str, outside: dict[str, Any]) -> None:
    (_, first), (_, second) = outside[name]
    ((file, message),) = first
    assert file == "the_users_file.py"
    assert message.startswith(f"{name} ")
    assert "outside" in message
    assert second == []


def test_reduce_must_be_a_dict(installed: RecordingSession) -> None:
    with pytest.raises(MetricError, match=r"reduce.*\{'loss': 'mean'\}"):
        session.report({"loss": 1.0}, reduce="mean")  # type: ignore[arg-type]
    assert not installed.calls


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
def test_a_forked_child_may_ask_who_it_is_but_not_use_the_channel(
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
    assert f"process {child}" in answer
    assert f"worker process {os.getpid()}" in answer
    session.report({"a": 2})
    assert installed.calls == [({"a": 2}, None, None)]
