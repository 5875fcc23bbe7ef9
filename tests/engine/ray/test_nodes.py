"""Nodes that leave, fall silent or have another version."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, Result, RunConfig, ScalingConfig, session
from paceline.air.errors import EngineError, WorkerDiedError
from paceline.engine.base import NodeDrains, Placement, TaskEnded, WorkerDied, WorkerGroup
from paceline.engine.remote import messages
from paceline.testing import invariants
from paceline.testing.engine_tools import collect, placement_in, run_task
from paceline.testing.processes import Marks, wait_for
from paceline.train import DataParallelTrainer

pytestmark = pytest.mark.cluster


@pytest.fixture
def engine(ray_cluster: Any) -> Iterator[Any]:
    """Of each test its own, with agents of its own."""
    from paceline.engine.ray.engine import RayEngine

    engine = RayEngine()
    yield engine
    engine.close()


def nodes_of(group: WorkerGroup) -> set[str]:
    return {place.node.node_id for place in group.places}


def all_nodes(engine: Any) -> set[str]:
    return set(engine.agents.nodes())


def held_groups() -> int:
    from ray.util import placement_group_table

    return sum(entry["state"] != "REMOVED" for entry in placement_group_table().values())


def agent_pid(engine: Any, node_id: str) -> int:
    return int(engine.agents._by_node[node_id].line.facts.pid)


def stay(channel: Any, argument: bytes) -> None:
    channel.receive()


def failures_of(group: WorkerGroup) -> list[WorkerDied]:
    return [event for event in collect(group, bool) if isinstance(event, WorkerDied)]


@pytest.mark.parametrize("what", ["Python", "paceline"])
def test_a_node_with_another_version_is_refused(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    python, ours = messages.own_versions()
    here = ("3.99.1", ours) if what == "Python" else (python, "77.0")
    monkeypatch.setattr(messages, "own_versions", lambda: here)
    there = platform.python_version() if what == "Python" else ours
    with pytest.raises(EngineError, match=rf"has {what} {there}, and this program runs with {what} (3\.99\.1|77\.0)"):
        engine.start_group(placement_in(tmp_path, 1, resources={"CPU": 1}))


def test_the_next_group_avoids_a_node_that_has_left(ray_cluster: Any, tmp_path: Path) -> None:
    from paceline.engine.ray.engine import RayEngine

    node = ray_cluster.add_node(num_cpus=2, resources={"extra": 2})
    engine = RayEngine()
    try:
        group = engine.start_group(placement_in(tmp_path / "a", 2, resources={"CPU": 1, "extra": 1}))
        assert nodes_of(group) == {node.node_id}
        run_task(group, stay)
        ray_cluster.remove_node(node, allow_graceful=False)
        lost_at = time.monotonic()
        [failure, *_] = [event.failure for event in failures_of(group)]
        assert time.monotonic() - lost_at < 10
        assert failure.kind in ("engine", "node_lost")
        assert group.places[0].node.address in failure.message
        assert group.has_lost_node(0)
        group.shutdown()
        again = engine.start_group(placement_in(tmp_path / "b", 2, resources={"CPU": 1}))
        assert node.node_id not in nodes_of(again)
        assert again.execute(os.getpid)
        again.shutdown()
    finally:
        engine.close()


def test_a_node_whose_agent_was_killed_is_used_again(engine: Any, tmp_path: Path) -> None:
    spread = {"resources": {"CPU": 1}, "strategy": "STRICT_SPREAD"}
    group = engine.start_group(placement_in(tmp_path / "a", 2, **spread))
    run_task(group, stay)
    os.kill(agent_pid(engine, group.places[1].node.node_id), signal.SIGKILL)
    [event] = failures_of(group)
    assert (event.rank, event.failure.kind) == (1, "engine")
    assert group.places[1].node.address in event.failure.message
    assert not group.has_lost_node(1), "the agent was killed on a node that lives"
    group.shutdown()
    again = engine.start_group(placement_in(tmp_path / "b", 2, **spread))  # There is no other node.
    assert nodes_of(again) == nodes_of(group)
    again.shutdown()


def test_a_node_that_does_not_answer_is_left_out(engine: Any, tmp_path: Path) -> None:
    spread = engine.start_group(placement_in(tmp_path / "a", 2, resources={"CPU": 1}, strategy="STRICT_SPREAD"))
    spread.shutdown()
    silent, other = (place.node.node_id for place in spread.places)
    pid = agent_pid(engine, silent)
    os.kill(pid, signal.SIGSTOP)
    try:
        group = engine.start_group(placement_in(tmp_path / "b", 2, resources={"CPU": 1}, strategy="SPREAD"))
        assert nodes_of(group) == {other}
        group.shutdown()
    finally:
        os.kill(pid, signal.SIGCONT)


def drain(cluster: Any, node_id: str, seconds: int | None) -> None:
    """As an autoscaler does before it takes a machine away."""
    options = [] if seconds is None else ["--deadline-remaining-seconds", str(seconds)]
    command = ["drain-node", "--address", cluster.address, "--node-id", node_id, *options]
    reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
    subprocess.run([sys.executable, "-m", "ray.scripts.scripts", *command, *reason], check=True, timeout=120)


@pytest.mark.parametrize("seconds", [100, None])
def test_a_draining_node_is_announced(ray_cluster: Any, engine: Any, tmp_path: Path, seconds: int | None) -> None:
    """Its workers still run; ranks on other nodes are not concerned, and the next group goes elsewhere."""
    node = ray_cluster.add_node(num_cpus=1, resources={"extra": 1})
    try:
        there = engine.start_group(placement_in(tmp_path / "a", 1, resources={"extra": 1, "CPU": 1}))
        elsewhere = engine.start_group(placement_in(tmp_path / "b", 1, resources={"CPU": 1}))
        for group in (there, elsewhere):
            run_task(group, stay)
        drain(ray_cluster, node.node_id, seconds)
        [event] = collect(there, bool)
        assert isinstance(event, NodeDrains)
        assert event.rank == 0
        assert there.places[0].node.address in event.node
        if seconds is None:
            assert event.seconds_left is None
        else:
            assert event.seconds_left is not None
            assert 0 < event.seconds_left <= seconds
        assert node.node_id in engine.agents.suspects()
        assert elsewhere.poll() == []
        there.reply(0, b"end")
        assert [type(event) for event in collect(there, bool)] == [TaskEnded], "it is announced once"
        there.shutdown()
        elsewhere.shutdown()
    finally:
        ray_cluster.remove_node(node, allow_graceful=False)


def _until_preempted(config: dict[str, Any]) -> None:
    marks, last = Marks(config["marks"]), session.get_checkpoint()
    start = 0 if last is None else last.to_dict()["step"]
    marks.say("started", after=start)
    for step in range(start + 1, 10_000_000 if last is None else start + 4):
        saves = session.should_checkpoint()
        marks.say("step", step=step, rank=session.get_world_rank())
        session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}) if saves else None)


def test_run_leaves_a_draining_node_with_a_checkpoint(ray_cluster: Any, engine: Any, tmp_path: Path) -> None:
    """No step is lost, and it does not count as a failure: max_failures is 0."""
    invariants.sockets_before = set(invariants.listening_sockets(os.getpid()))  # An engine listens as long as it lives.
    node = ray_cluster.add_node(num_cpus=6)  # PACK chooses it for six workers.
    marks = Marks(tmp_path / "marks")
    trainer = DataParallelTrainer(
        _until_preempted,
        train_loop_config={"marks": str(marks.directory)},
        scaling_config=ScalingConfig(num_workers=6, placement_strategy="STRICT_PACK", trainer_resources={"CPU": 0}),
        run_config=RunConfig(storage_path=str(tmp_path / "results"), engine=engine, verbose=0),
    )
    results: list[Result] = []
    running = threading.Thread(target=lambda: results.append(trainer.fit()))
    running.start()
    try:
        marks.wait("step", 6)
        second = ray_cluster.add_node(num_cpus=6)
        drain(ray_cluster, node.node_id, 60)
        running.join(100)
        ray_cluster.remove_node(second, allow_graceful=False)
    finally:
        ray_cluster.remove_node(node, allow_graceful=False)
    (result,) = results
    invariants.check_run(result.path, result=result, attempts=2)
    assert any("drains" in text and "does not count as a failure" in text for text in result.warnings)
    steps = [mark["step"] for mark in marks.read("step", rank=0)]
    assert steps == list(range(1, len(steps) + 1)), "a step was done twice, or left out"


def held_room(engine: Any, cpus: float) -> Any:
    """Nobody else uses the cluster, so there is room."""
    return wait_for(lambda: engine.reserve(Placement.sketch(1, {"CPU": cpus})), "room")


@contextmanager
def silent_agent(engine: Any, node_id: str) -> Iterator[None]:
    pid = agent_pid(engine, node_id)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_room_on_a_node_that_does_not_answer_is_exchanged(engine: Any, tmp_path: Path) -> None:
    both = placement_in(tmp_path / "a", 2, resources={"CPU": 1}, strategy="STRICT_SPREAD")
    engine.start_group(both).shutdown()
    held = held_room(engine, 3)
    [silent] = held.room.node_ids
    with silent_agent(engine, silent):
        group = engine.start_group(placement_in(tmp_path / "b", 1, resources={"CPU": 3}, reservation=held))
    assert nodes_of(group) == all_nodes(engine) - {silent}
    assert held.is_lost, "the trial needs room of its own for the next attempt"
    group.shutdown()


def test_room_that_cannot_be_used_is_given_back_before_there_is_other_room(engine: Any, tmp_path: Path) -> None:
    both = placement_in(tmp_path / "a", 2, resources={"CPU": 1}, strategy="STRICT_SPREAD")
    engine.start_group(both).shutdown()
    held, others = held_room(engine, 3), held_room(engine, 3)
    asked = placement_in(tmp_path / "b", 1, resources={"CPU": 3}, reservation=held, start_timeout_s=120)
    began = time.monotonic()
    with silent_agent(engine, held.room.node_ids[0]), pytest.raises(WorkerDiedError, match="does not answer") as raised:
        engine.start_group(asked)
    assert raised.value.failure.kind == "engine", "so that the run tries again"
    assert time.monotonic() - began < 60
    others.release()


def test_room_that_is_too_small_is_not_used(engine: Any, tmp_path: Path) -> None:
    held = held_room(engine, 1)
    group = engine.start_group(placement_in(tmp_path, 1, resources={"CPU": 3}, reservation=held))
    assert held.is_lost
    assert held_groups() == 1
    group.shutdown()


def test_what_is_asked_often_costs_little(engine: Any) -> None:
    engine.capabilities  # noqa: B018  (the first time it waits for agents)
    engine.resources()
    began = time.monotonic()
    for _ in range(100):
        assert engine.capabilities.chooses_nodes
        assert engine.resources()["CPU"] >= 8
    assert time.monotonic() - began < 0.5
