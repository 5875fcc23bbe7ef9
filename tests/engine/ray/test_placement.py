"""What a placement asks for reaches Ray, and waiting for room ends well."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import ConfigError, NoRoomError
from paceline.engine.base import Engine, WorkerGroup
from paceline.testing.engine_tools import placement_in
from paceline.testing.processes import wait_for

pytestmark = pytest.mark.cluster

GPUS = 2
LICENCES = 4


@pytest.fixture(scope="module")
def special_node(ray_cluster: Any) -> Iterator[str]:
    """The id of a node that has what the others do not have."""
    resources = {"licence": LICENCES, "accelerator_type:T4": 1}
    node = ray_cluster.add_node(num_cpus=2, num_gpus=GPUS, resources=resources)
    yield node.node_id
    ray_cluster.remove_node(node)


@pytest.fixture(scope="module")
def engine(special_node: str) -> Iterator[Engine]:
    from paceline.engine.ray.engine import RayEngine

    engine = RayEngine()
    yield engine
    engine.close()


Start = Callable[..., WorkerGroup]


@pytest.fixture
def start(engine: Engine, tmp_path: Path) -> Iterator[Start]:
    groups: list[WorkerGroup] = []

    def started(workers: int, resources: dict[str, float], **settings: Any) -> WorkerGroup:
        folder = tmp_path / str(len(groups))
        groups.append(engine.start_group(placement_in(folder, workers, resources=resources, **settings)))
        return groups[-1]

    yield started
    for group in groups:
        group.shutdown()
    assert held_groups() == 0


def held_groups() -> int:
    from ray.util import placement_group_table

    return sum(entry["state"] != "REMOVED" for entry in placement_group_table().values())


def nodes_of(group: WorkerGroup) -> list[str]:
    return [place.node.node_id for place in group.places]


def devices(group: WorkerGroup) -> list[str | None]:
    return group.execute(lambda: os.environ.get("CUDA_VISIBLE_DEVICES"))


def free(name: str) -> float:
    import ray

    return ray.available_resources().get(name, 0.0)


def eventually(name: str, amount: float) -> None:
    """What Ray says of free resources follows with a delay."""
    deadline = time.monotonic() + 20
    while free(name) != amount:
        assert time.monotonic() < deadline, f"{name}: {free(name)} are free, not {amount}"
        time.sleep(0.05)


def test_strategies(start: Start) -> None:
    assert len(set(nodes_of(start(3, {"CPU": 1}, strategy="STRICT_SPREAD")))) == 3
    assert len(set(nodes_of(start(2, {"CPU": 1}, strategy="STRICT_PACK")))) == 1
    assert len(set(nodes_of(start(2, {"CPU": 0.5}, strategy="SPREAD")))) == 2


def test_custom_resources_and_the_type_of_gpu_choose_the_node(start: Start, special_node: str) -> None:
    assert nodes_of(start(2, {"licence": 1})) == [special_node] * 2
    assert nodes_of(start(1, {"CPU": 1}, accelerator_type="T4")) == [special_node]


def test_workers_that_ask_for_nothing_or_for_memory_are_placed(start: Start) -> None:
    assert start(2, {"CPU": 0.0, "GPU": 0.0}).execute(os.getpid)
    assert start(1, {"memory": 2**20}).execute(os.getpid)


def test_room_for_the_driver_is_kept_while_the_group_runs(start: Start) -> None:
    group = start(1, {"licence": 1}, driver_resources={"licence": 2})
    eventually("licence", LICENCES - 3)
    group.shutdown()
    eventually("licence", LICENCES)


def test_every_worker_sees_its_own_gpu(start: Start) -> None:
    assert sorted(map(str, devices(start(2, {"GPU": 1})))) == ["0", "1"]
    assert start(1, {"CPU": 1}, hide_other_gpus=True).places[0].gpus == ()


def test_shared_and_several_gpus(start: Start) -> None:
    group = start(2, {"GPU": 1}, share_gpus=True)
    assert [sorted(str(seen).split(",")) for seen in devices(group)] == [["0", "1"]] * 2
    group.shutdown()
    assert sorted(str(devices(start(1, {"GPU": 2}))[0]).split(",")) == ["0", "1"]


def test_parts_of_gpus_are_those_that_ray_has_chosen(start: Start) -> None:
    """One card is half taken: two workers cannot both be on it."""
    [taken] = devices(start(1, {"GPU": 0.5}))
    seen = devices(start(3, {"GPU": 0.5}))
    assert sorted([taken, *seen], key=str) == ["0", "0", "1", "1"]


def test_what_can_never_fit_is_refused_at_once(start: Start) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"(?s)2 workers with GPU 64 each.*No node has GPU 64") as caught:
        start(2, {"GPU": 64})
    assert str(caught.value).count(": GPU") == 3, "every node is listed"
    with pytest.raises(ConfigError, match="each on another node"):
        start(4, {"CPU": 1}, strategy="STRICT_SPREAD")
    with pytest.raises(ConfigError, match="accelerator_type:H100"):
        start(1, {"CPU": 1}, accelerator_type="H100")
    assert time.monotonic() - began < 2
    assert held_groups() == 0


def test_waiting_for_room_is_told_once_and_ends_in_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engine.ray.reservation.ANNOUNCE_S", 0.5)
    start(1, {"licence": LICENCES})
    told: list[str] = []
    with pytest.raises(NoRoomError, match=r"no room for 1 worker with licence 1[^.]*\. Free on its nodes"):
        start(1, {"licence": 1}, resource_timeout_s=2.0, notify=told.append)
    assert len(told) == 1
    assert "licence 0" in told[0]
    assert held_groups() == 1


def test_room_is_what_others_do_not_use(engine: Engine, start: Start) -> None:
    """Ray takes a moment to count what was given back."""
    wait_for(lambda: engine.room({"licence": 1}) == LICENCES, "all licences")
    assert engine.room({"licence": 3}) == 1
    assert engine.room({"licence": 1, "GPU": 1}) == GPUS
    assert engine.room({"oil": 1}) == 0
    group = start(1, {"licence": 1})
    wait_for(lambda: engine.room({"licence": 1}) == LICENCES - 1, "one licence less")
    group.shutdown()
    wait_for(lambda: engine.room({"licence": 1}) == LICENCES, "all licences again")


def test_a_group_starts_when_there_is_room(start: Start) -> None:
    first = start(1, {"licence": LICENCES})
    threading.Timer(0.5, first.shutdown).start()
    assert start(1, {"licence": LICENCES}).execute(os.getpid)


def test_waiting_for_room_can_be_interrupted(start: Start) -> None:
    start(1, {"licence": LICENCES})
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        start(1, {"licence": 1})
    assert time.monotonic() - began < 5
    assert held_groups() == 1
