"""How an attempt asks for its workers; what becomes of them is tested with real ones elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.air import FailureConfig, RunConfig, ScalingConfig
from paceline.air.attachment import Attachment
from paceline.air.errors import EngineError, WorkerFailure
from paceline.engine.base import Capabilities, Engine, Event, Placement, TaskEnded, TaskFailed, WorkerDied, WorkerGroup
from paceline.engine.places import FAIR_SHARE, Node, drivers_node, lay_out
from paceline.engine.serialization import Pickled
from paceline.run.attempt import Attempt, StartPoint, modules_to_preload
from paceline.run.backend import Backend, BackendConfig
from paceline.run.messages import decode_setup
from paceline.run.spec import RunSpec, TrainFunction
from paceline.storage.run_dir import RunDir
from paceline.testing.processes import wait_for
from tests.run.fake_channel import session_setup

TASK = Pickled(b"task")


class FakeGroup(WorkerGroup):
    """Workers that do what the test says."""

    def __init__(self, placement: Placement, nodes: Sequence[Node]) -> None:
        self.placement = placement
        self.places = lay_out(placement, nodes)
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

    def __init__(self, *nodes: Node) -> None:
        self.nodes = nodes
        """Of each rank."""
        self.groups: list[FakeGroup] = []

    def resources(self) -> dict[str, float]:
        return {"CPU": 4, "GPU": 4}

    def start_group(self, placement: Placement) -> WorkerGroup:
        self.groups.append(FakeGroup(placement, self.nodes or [drivers_node()] * placement.world_size))
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


class SettingBackend(Backend):
    def environment(self, backend_config: BackendConfig) -> dict[str, str]:
        return {"PATH": "the backend's"}


class SettingConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return SettingBackend


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
    notify = scaling.pop("notify", None)
    description = RunSpec(
        trainer_name="Trainer",
        train=TrainFunction(print),
        config={},
        scaling=ScalingConfig(**{"num_workers": 2, **scaling}),
        run_config=RunConfig(failure_config=FailureConfig(start_timeout_s=7, heartbeat_timeout_s=3)),
        backend_config=backend or BackendConfig(),
    )
    return Attempt(0, description, description.max_workers, engine, run_dir, StartPoint(), notify)


class NodesEngine(FakeEngine):
    capabilities = Capabilities(chooses_nodes=True)


def test_a_cluster_is_asked_for_everything_that_the_scaling_config_says(tmp_path: Path) -> None:
    wishes = {
        "use_gpu": True,
        "resources_per_worker": {"CPU": 2, "licence": 1, "memory": 5},
        "accelerator_type": "A100",
    }
    engine = NodesEngine(*[Node("a", "10.0.0.1", "alpha", cores=8, gpus=("0", "1"))] * 2)
    said: list[str] = []
    wanting = attempt(
        tmp_path, engine, placement_strategy="SPREAD", trainer_resources={"CPU": 3}, notify=said.append, **wishes
    )
    wanting.start(TASK, lambda group: session_setup(tmp_path))
    placement = engine.groups[0].placement
    assert placement.resources == {"CPU": 2, "GPU": 1, "licence": 1, "memory": 5}
    assert placement.driver_resources == {"CPU": 3}
    assert (placement.strategy, placement.accelerator_type) == ("SPREAD", "A100")
    assert placement.notify == said.append


def test_a_trainer_without_workers_is_the_worker(tmp_path: Path) -> None:
    engine = NodesEngine()
    attempt(tmp_path, engine, num_workers=None, trainer_resources={"CPU": 4}).start(
        TASK, lambda group: session_setup(tmp_path)
    )
    assert engine.groups[0].placement.resources == {"CPU": 4}
    assert engine.groups[0].placement.driver_resources == {}


def test_one_machine_is_asked_for_cpus_and_gpus(tmp_path: Path) -> None:
    engine = FakeEngine()
    attempt(tmp_path, engine, resources_per_worker={"licence": 1}, trainer_resources={"CPU": 3}).start(
        TASK, lambda group: session_setup(tmp_path)
    )
    assert engine.groups[0].placement.resources == {"CPU": 0, "GPU": 0}
    assert engine.groups[0].placement.driver_resources == {}


def test_what_workers_are_asked_for(tmp_path: Path) -> None:
    engine = FakeEngine()
    started = attempt(tmp_path, engine)
    started.start(TASK, lambda group: session_setup(tmp_path / "trial"))
    (group,) = engine.groups
    assert [place.cwd for place in group.placement.workers] == [str(tmp_path / "trial" / f"rank_{r}") for r in (0, 1)]
    assert all(Path(place.cwd).is_dir() for place in group.placement.workers)
    assert (group.placement.start_timeout_s, group.placement.heartbeat_timeout_s) == (7, 3)
    ranks = [decode_setup(argument) for argument in group.arguments]
    assert [(setup.world_rank, setup.local_rank, setup.node_rank) for setup in ranks] == [(0, 0, 0), (1, 1, 0)]
    assert [(setup.world_size, setup.local_world_size) for setup in ranks] == [(2, 2)] * 2
    assert started.running == [0, 1]
    started.stop()
    assert group.closed


def test_ranks_learn_from_the_group_where_they_are(tmp_path: Path) -> None:
    alpha, beta = Node("a", "10.0.0.1", "alpha", cores=8), Node("b", "10.0.0.2", "beta", cores=4)
    engine = FakeEngine(alpha, beta, alpha)
    started = attempt(tmp_path, engine, num_workers=3)
    started.start(TASK, lambda group: session_setup(tmp_path / "trial"))
    setups = [decode_setup(argument) for argument in engine.groups[0].arguments]
    assert [setup.node_rank for setup in setups] == [0, 1, 0]
    assert [setup.local_rank for setup in setups] == [0, 0, 1]
    assert [setup.local_world_size for setup in setups] == [2, 1, 2]
    record = started.record()
    assert (record.hostname, record.node_ip, record.world_size) == ("alpha", "10.0.0.1", 3)
    started.stop()


@pytest.mark.parametrize(
    ("scaling", "backend", "resources", "shared", "hidden"),
    [
        ({}, None, {"CPU": 1, "GPU": 0}, False, False),
        ({"use_gpu": True}, None, {"CPU": 0, "GPU": 1}, False, False),
        ({"use_gpu": True, "resources_per_worker": {"CPU": 3, "GPU": 2}}, None, {"CPU": 3, "GPU": 2}, False, False),
        ({}, "sharing", {"CPU": 1, "GPU": 0}, True, False),
        ({}, "hiding", {"CPU": 1, "GPU": 0}, False, True),
    ],
)
def test_the_engine_is_told_what_each_worker_shall_have(
    tmp_path: Path,
    scaling: dict[str, Any],
    backend: str | None,
    resources: dict[str, float],
    shared: bool,
    hidden: bool,
) -> None:
    engine = FakeEngine(*[Node("a", "10.0.0.1", "alpha", cores=8, gpus=("0", "1", "2", "3"))] * 2)
    config = {"sharing": SharingConfig, "hiding": HidingConfig, None: BackendConfig}[backend]()
    attempt(tmp_path, engine, config, **scaling).start(TASK, lambda group: session_setup(tmp_path))
    asked = engine.groups[0].placement
    assert (asked.resources, asked.share_gpus, asked.hide_other_gpus) == (resources, shared, hidden)
    assert (asked.devices, asked.threads) == (None, FAIR_SHARE)


def test_what_a_backend_sets_gives_way_to_the_environment_of_workers(tmp_path: Path) -> None:
    engine = FakeEngine()
    attempt(tmp_path, engine, SettingConfig()).start(TASK, lambda group: session_setup(tmp_path))
    for request in engine.groups[0].placement.workers:
        assert request.defaults == {"PATH": "the backend's", "TUNE_ORIG_WORKING_DIR": os.getcwd()}
        assert not request.env


def test_a_start_is_all_or_nothing(tmp_path: Path) -> None:
    engine = FakeEngine()
    with pytest.raises(EngineError, match="no rendezvous"):
        attempt(tmp_path, engine, RefusingConfig()).start(TASK, lambda group: session_setup(tmp_path))
    assert engine.groups[0].closed
    assert engine.groups[0].arguments == []


def test_failures_are_noted_and_the_others_get_time_to_speak(tmp_path: Path) -> None:
    engine = FakeEngine()
    started = attempt(tmp_path, engine, num_workers=3)
    started.start(TASK, lambda group: session_setup(tmp_path))
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
    started.start(TASK, lambda group: session_setup(tmp_path))
    settled = []
    for rank, message in enumerate(("Connection reset by peer", "Socket closed", "ValueError: no data")):
        engine.groups[0].events = [TaskFailed(rank, WorkerFailure(rank, "exception", message))]
        list(started.poll(0.0))
        settled.append(started.settled_at)
    first_echo, second_echo, cause = settled
    assert second_echo == first_echo
    assert cause < first_echo


class FarGroup(FakeGroup):
    """Workers on other machines, which answer when the test lets them; one never does."""

    def __init__(self, placement: Placement, nodes: Sequence[Node]) -> None:
        super().__init__(placement, nodes)
        self.answers = threading.Event()
        self.times_asked = 0
        self.silent: set[int] = set()

    def stacks(self, timeout: float = 1.0) -> dict[int, str]:
        self.times_asked += 1
        self.answers.wait(10)
        return {rank: "here" for rank in range(self.world_size) if rank not in self.silent}


class FarEngine(FakeEngine):
    group: FarGroup

    def start_group(self, placement: Placement) -> WorkerGroup:
        self.group = FarGroup(placement, [Node("b", "10.0.0.2", "beta", cores=4)] * placement.world_size)
        return self.group


def echoes_of_far_ranks(tmp_path: Path, workers: int, silent: set[int]) -> tuple[Attempt, FarGroup]:
    """An attempt whose ranks report that they have lost another, except for the last one, which says nothing."""
    engine = FarEngine()
    started = attempt(tmp_path, engine, num_workers=workers)
    started.start(TASK, lambda group: session_setup(tmp_path))
    engine.group.silent = silent
    message = "Connection closed by peer"
    engine.group.events = [TaskFailed(rank, WorkerFailure(rank, "exception", message)) for rank in range(workers - 1)]
    list(started.poll(0.0))
    return started, engine.group


def test_the_driver_does_not_wait_for_stacks_of_ranks_out_of_reach(tmp_path: Path) -> None:
    started, group = echoes_of_far_ranks(tmp_path, 20, silent={19})
    in_a_while = time.monotonic() + 3
    assert started.settled_at > in_a_while, "whether the last rank is in reach is not known yet"
    group.answers.set()
    wait_for(lambda: group.times_asked, "the question")
    assert group.times_asked == 1
    assert started.settled_at > in_a_while, "it is not: the heartbeat shall find out"
    group.events = [WorkerDied(19, WorkerFailure(19, "engine", "beta (10.0.0.2) has given no sign of life for 3 s"))]
    list(started.poll(0.0))
    assert started.failed
    assert started.failures[-1].message == "beta (10.0.0.2) has given no sign of life for 3 s"
    assert started.failures[0].message == "Connection closed by peer (on beta, 10.0.0.2)"


def test_ranks_that_answer_are_not_waited_for_until_the_heartbeat(tmp_path: Path) -> None:
    started, group = echoes_of_far_ranks(tmp_path, 3, silent=set())
    group.answers.set()
    wait_for(lambda: started.settled_at < time.monotonic() + 1.5, "the answer")


def test_a_full_disk_in_a_worker_is_a_failure_of_storage(tmp_path: Path) -> None:
    engine = FakeEngine()
    started = attempt(tmp_path, engine)
    started.start(TASK, lambda group: session_setup(tmp_path))
    failure = WorkerFailure(0, "exception", "full", exception_type="paceline.air.errors.StorageError")
    engine.groups[0].events = [TaskFailed(0, failure)]
    list(started.poll(0.0))
    assert started.failures[0].kind == "storage"


def test_what_a_backend_needs_is_loaded_beforehand() -> None:
    assert modules_to_preload(RefusingConfig())[0] == "colorsys"
    assert "paceline.run.worker" in modules_to_preload(BackendConfig())
