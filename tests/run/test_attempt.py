"""How an attempt asks for its workers; what becomes of them is tested with real ones elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.air import FailureConfig, RunConfig, ScalingConfig
from paceline.air.attachment import Attachment
from paceline.air.errors import ConfigError, EngineError, WorkerFailure
from paceline.engine.base import Engine, Event, Placement, TaskEnded, TaskFailed, WorkerDied, WorkerGroup
from paceline.engine.serialization import Pickled
from paceline.run.attempt import Attempt, modules_to_preload, threads_per_worker
from paceline.run.backend import Backend, BackendConfig
from paceline.run.messages import decode_setup
from paceline.run.spec import RunSpec, TrainFunction
from paceline.run.start_point import StartPoint
from paceline.storage.run_dir import RunDir
from tests.run.fake_channel import session_setup

TASK = Pickled(b"task")


class FakeGroup(WorkerGroup):
    """Workers that do what the test says."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.events: list[Event] = []
        self.arguments: list[bytes] = []
        self.closed = False

    def execute(
        self, fn: Callable[..., Any], *args: Any, ranks: Sequence[int] | None = None, timeout: float = 60.0
    ) -> list[Any]:
        raise NotImplementedError

    def start(self, task: bytes, arguments: Sequence[bytes], attachments: Sequence[Attachment] = ()) -> None:
        self.arguments = list(arguments)

    def poll(self, timeout: float | None = 0.0) -> list[Event]:
        events, self.events = self.events, []
        return events

    def reply(self, rank: int, body: bytes, attachments: Sequence[Attachment] = ()) -> None:
        raise NotImplementedError

    def stacks(self, timeout: float = 1.0) -> dict[int, str]:
        return {}

    def processes(self) -> dict[int, int]:
        return {place.rank: os.getpid() for place in self.placement.workers}

    def shutdown(self, grace: float = 0.0) -> list[str]:
        self.closed = True
        return []


class FakeEngine(Engine):
    name = "fake"

    def __init__(self, gpus: float = 0) -> None:
        self.gpus = gpus
        self.groups: list[FakeGroup] = []

    def resources(self) -> dict[str, float]:
        return {"CPU": 4, "GPU": self.gpus}

    def start_group(self, placement: Placement) -> WorkerGroup:
        self.groups.append(FakeGroup(placement))
        return self.groups[-1]

    def wait(self, groups: Sequence[WorkerGroup], timeout: float | None) -> list[WorkerGroup]:
        return list(groups)

    def close(self) -> None:
        pass


class SharingBackend(Backend):
    share_cuda_visible_devices = True


class SharingConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return SharingBackend


class HidingBackend(Backend):
    hide_other_gpus = True


class HidingConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return HidingBackend


class RefusingBackend(Backend):
    preload = ("colorsys",)

    def on_training_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        raise EngineError("no rendezvous")


class RefusingConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return RefusingBackend


def attempt(tmp_path: Path, engine: Engine, backend: BackendConfig | None = None, **scaling: Any) -> Attempt:
    run_dir = RunDir(tmp_path / "trial")
    run_dir.create()
    description = RunSpec(
        trainer_name="Trainer",
        train=TrainFunction(print),
        config={},
        scaling=ScalingConfig(**{"num_workers": 2, **scaling}),
        run_config=RunConfig(failure_config=FailureConfig(start_timeout_s=7, heartbeat_timeout_s=3)),
        backend_config=backend or BackendConfig(),
    )
    return Attempt(0, description, engine, run_dir, StartPoint())


def test_what_workers_are_asked_for(tmp_path: Path) -> None:
    engine = FakeEngine()
    started = attempt(tmp_path, engine)
    started.start(TASK, session_setup(tmp_path / "trial"))
    (group,) = engine.groups
    assert [place.cwd for place in group.placement.workers] == [str(tmp_path / "trial" / f"rank_{r}") for r in (0, 1)]
    assert all(Path(place.cwd).is_dir() for place in group.placement.workers)
    assert (group.placement.start_timeout_s, group.placement.heartbeat_timeout_s) == (7, 3)
    ranks = [decode_setup(argument) for argument in group.arguments]
    assert [(setup.world_rank, setup.local_rank, setup.node_rank) for setup in ranks] == [(0, 0, 0), (1, 1, 0)]
    assert started.running == [0, 1]
    started.stop()
    assert group.closed


@pytest.mark.parametrize(
    ("scaling", "sharing", "visible"),
    [
        ({"use_gpu": True}, False, ["4", "5"]),
        ({"use_gpu": True}, True, ["4,5", "4,5"]),
        ({"use_gpu": True, "resources_per_worker": {"GPU": 2}}, False, ["4,5", "6,7"]),
        ({"use_gpu": True, "resources_per_worker": {"GPU": 0.5}}, False, ["4", "4"]),
        ({}, False, [None, None]),
    ],
)
def test_gpus_are_dealt_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scaling: dict[str, Any], sharing: bool, visible: list[str | None]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    engine = FakeEngine(gpus=4)
    attempt(tmp_path, engine, SharingConfig() if sharing else None, **scaling).start(TASK, session_setup(tmp_path))
    places = engine.groups[0].placement.workers
    assert [place.env.get("CUDA_VISIBLE_DEVICES") for place in places] == visible


@pytest.mark.parametrize(("use_gpu", "visible"), [(False, ["", ""]), (True, ["4", "5"])])
def test_gpus_of_others_are_hidden_where_the_backend_wants_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_gpu: bool, visible: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    engine = FakeEngine(gpus=4)
    attempt(tmp_path, engine, HidingConfig(), use_gpu=use_gpu).start(TASK, session_setup(tmp_path))
    assert [place.env["CUDA_VISIBLE_DEVICES"] for place in engine.groups[0].placement.workers] == visible


def test_gpus_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    engine = FakeEngine(gpus=1)
    with pytest.raises(ConfigError, match=r"\b2 GPU.*\b1\b"):
        attempt(tmp_path, engine, use_gpu=True).start(TASK, session_setup(tmp_path))
    assert engine.groups == []


def test_a_start_is_all_or_nothing(tmp_path: Path) -> None:
    engine = FakeEngine()
    with pytest.raises(EngineError, match="no rendezvous"):
        attempt(tmp_path, engine, RefusingConfig()).start(TASK, session_setup(tmp_path))
    assert engine.groups[0].closed
    assert engine.groups[0].arguments == []


def test_failures_are_noted_and_the_others_get_time_to_speak(tmp_path: Path) -> None:
    engine = FakeEngine()
    started = attempt(tmp_path, engine, num_workers=3)
    started.start(TASK, session_setup(tmp_path))
    group = engine.groups[0]
    group.events = [TaskEnded(0), TaskFailed(1, WorkerFailure(1, "exception", "ValueError: x"))]
    assert list(started.poll(0.0)) == []
    assert started.running == [2]
    assert started.failures[0].log_path == str(tmp_path / "trial" / "logs" / "rank_1.log")
    assert started.settled_at < float("inf")
    group.events = [WorkerDied(2, WorkerFailure(2, "signal", "killed"))]
    list(started.poll(0.0))
    assert started.failed  # nobody is left who could say more
    assert [failure.rank for failure in started.failures] == [1, 2]


def test_while_there_are_only_echoes_the_cause_gets_more_time(tmp_path: Path) -> None:
    engine = FakeEngine()
    started = attempt(tmp_path, engine, num_workers=3)
    started.start(TASK, session_setup(tmp_path))
    settled = []
    for rank, message in enumerate(("Connection reset by peer", "Socket closed", "ValueError: no data")):
        engine.groups[0].events = [TaskFailed(rank, WorkerFailure(rank, "exception", message))]
        list(started.poll(0.0))
        settled.append(started.settled_at)
    first_echo, second_echo, cause = settled
    assert second_echo == first_echo
    assert cause < first_echo


def test_a_full_disk_in_a_worker_is_a_failure_of_storage(tmp_path: Path) -> None:
    engine = FakeEngine()
    started = attempt(tmp_path, engine)
    started.start(TASK, session_setup(tmp_path))
    failure = WorkerFailure(0, "exception", "full", exception_type="paceline.air.errors.StorageError")
    engine.groups[0].events = [TaskFailed(0, failure)]
    list(started.poll(0.0))
    assert started.failures[0].kind == "storage"


def test_threads_per_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plain = ScalingConfig(num_workers=2)
    assert [threads_per_worker(plain, size) for size in (1, 2, 3, 8, 64)] == [8, 4, 2, 1, 1]
    assert threads_per_worker(ScalingConfig(num_workers=2, resources_per_worker={"CPU": 3}), 2) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads_per_worker(plain, 2) == 5
    for nonsense in ("", "many", "0"):
        monkeypatch.setenv("OMP_NUM_THREADS", nonsense)
        assert threads_per_worker(plain, 2) == 4


def test_what_a_backend_needs_is_loaded_beforehand() -> None:
    assert modules_to_preload(RefusingConfig())[0] == "colorsys"
    assert "paceline.run.worker" in modules_to_preload(BackendConfig())
