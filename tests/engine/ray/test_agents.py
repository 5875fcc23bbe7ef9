"""Agents and reservations while nodes come and go, without a cluster."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

import ray.exceptions

from paceline.air.errors import EngineError, EngineLost
from paceline.engine.base import Placement
from paceline.engine.ray import agents as module
from paceline.engine.ray import engine as engine_module
from paceline.engine.ray import reservation
from paceline.engine.ray.agents import Agents, NodeAgent, UnusableNodeError
from paceline.engine.ray.room import ClusterNode
from paceline.engine.reactor import Reactor
from paceline.engine.remote import messages
from paceline.engine.remote.agent_line import AgentLine

NODE = ClusterNode("n1", "10.0.0.1", "h1", {"CPU": 4, "GPU": 1})


class Connection:
    """One to a cluster that answers."""

    lost = ""

    def ask(self, call: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        return call(*arguments)

    def begin(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Nobody waits for that."""


def played_connection() -> Any:
    return Connection()


class SomeAgents(Agents):
    """Those of a cluster with one node; they are started by nobody."""

    is_gone_after = 1000
    """How often the cluster says that it has the node."""

    def nodes(self, *, fresh: bool = False) -> dict[str, ClusterNode]:
        self.is_gone_after -= 1
        return {NODE.node_id: NODE} if self.is_gone_after >= 0 else {}

    def _start(self, node: ClusterNode, *, replaces_lost: bool) -> NodeAgent:
        number = next(self._numbers)
        agent = NodeAgent(number, node, AgentLine(node.label, self._reactor), None, object(), replaces_lost)
        self._by_number[number] = agent
        return agent

    def _note_ends(self) -> None:
        """They do not end."""


@pytest.fixture
def agents() -> Iterator[SomeAgents]:
    reactor = Reactor()
    settings = messages.AgentSettings(("10.0.0.9", 1), b"", 0, 60.0)
    yield SomeAgents(played_connection(), reactor, settings)
    reactor.close()


def test_the_agents_that_were_checked_are_the_ones_that_are_used(
    agents: SomeAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may have replaced one that was lost since."""
    agents.start([NODE.node_id])
    (checked,) = agents._by_node.values()
    checked.line.facts = messages.NodeFacts("h1", 4, "", 1, *messages.own_versions())

    def lose_one(answered: list[NodeAgent]) -> None:
        checked.line.lose("the test says so")
        agents.start([NODE.node_id])

    monkeypatch.setattr(agents, "_call_roll", lose_one)
    assert agents.ready([NODE.node_id] * 2, time.monotonic() + 5) == [checked, checked]
    assert agents._by_node[NODE.node_id] is not checked
    assert checked not in agents._by_number.values(), "nobody keeps an agent that was replaced"


def test_a_loss_is_remembered_when_the_next_agent_is_on_its_way(
    agents: SomeAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room that was reserved before it must not be used again: the node may be gone."""
    before = time.monotonic()
    agents.start([NODE.node_id])
    agents._by_node[NODE.node_id].line.lose("the test says so")
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    agents.try_again()
    assert agents._by_node[NODE.node_id].is_coming
    assert agents.lost_at()[NODE.node_id] > before


def test_a_node_that_is_silent_for_a_moment_is_avoided_and_not_lost(
    agents: SomeAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that run there wait for heartbeat_timeout_s, whoever else wants to start."""
    monkeypatch.setattr(module, "ROLL_CALL_S", 0.2)
    agents.start([NODE.node_id])
    (agent,) = agents._by_node.values()
    agent.line.facts = messages.NodeFacts("h1", 4, "", 1, *messages.own_versions())
    ours, its = socket.socketpair()
    agent.line.attach(ours)
    told: list[AgentLine] = []
    group: Any = SimpleNamespace(on_agent_lost=told.append)
    agent.line.groups[1] = group
    with pytest.raises(UnusableNodeError, match="no answer"):
        agents.ready([NODE.node_id], time.monotonic() + 5)
    assert not agent.line.lost
    assert told == []
    assert agents.suspects() == {NODE.node_id}
    assert NODE.node_id in agents.lost_at(), "room there is not used meanwhile"
    agent.line._heard()
    assert agents.suspects() == set()
    assert agents.lost_at() == {}
    agent.line.groups.clear()
    with pytest.raises(UnusableNodeError, match="does not answer"):
        agents.ready([NODE.node_id], time.monotonic() + 5)
    assert agent.line.lost
    its.close()


def test_a_node_stays_suspect_until_an_agent_has_come_up(agents: SomeAgents) -> None:
    """However many have been tried in vain: otherwise a start would wait there until its time is up."""
    agents.start([NODE.node_id])
    agents._by_node[NODE.node_id].line.facts = messages.NodeFacts("h1", 4, "", 1, *messages.own_versions())
    for _ in range(3):
        agents._by_node[NODE.node_id].line.lose("the test says so")
        agents.start([NODE.node_id])
        assert agents._by_node[NODE.node_id].is_coming
        assert agents.suspects() == {NODE.node_id}


def test_a_node_that_leaves_meanwhile_is_unusable(agents: SomeAgents) -> None:
    agents.is_gone_after = 1
    with pytest.raises(UnusableNodeError, match=r"n1.* has left the cluster"):
        agents.ready([NODE.node_id], time.monotonic() + 5)


def test_a_node_that_does_not_come_back_is_forgotten_in_the_end(
    agents: SomeAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor in a cloud has another address. Requests that fit on no node are refused again then."""
    described = {"Alive": True, "NodeManagerHostname": "h", "Resources": {"CPU": 4}}
    there = [{**described, "NodeID": name, "NodeManagerAddress": f"10.0.0.{name[1:]}"} for name in ("n1", "n2", "n3")]
    now = time.monotonic()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(module, "ray", SimpleNamespace(nodes=lambda: list(there)))
    for leaves in (None, "n2", "n3"):
        there = [node for node in there if node["NodeID"] != leaves]
        Agents.nodes(agents, fresh=True)
        now += module.LEFT_FOR_S - 1
    assert set(agents.left) == {"n2", "n3"}
    Agents.nodes(agents, fresh=True)
    assert set(agents.left) == {"n3"}
    now += 2
    assert set(Agents.nodes(agents, fresh=True)) == {"n1"}
    assert agents.left == {}


def test_no_more_nodes_get_ready_than_a_group_can_use(agents: SomeAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones are those that are ready."""
    nodes = {name: ClusterNode(name, "10.0.0.1", name, {"CPU": 4}) for name in (f"n{number}" for number in range(50))}
    monkeypatch.setattr(agents, "nodes", lambda: nodes)
    agents.start(["n7", "n49"])
    assert agents.nodes_for(2)[:3] == ["n7", "n49", "n0"]
    assert len(agents.nodes_for(2)) == module.WARM_ANYWAY
    assert len(agents.nodes_for(20)) == 20
    assert len(agents.nodes_for(None)) == 50


def test_nobody_asks_a_ray_that_is_shut_down(agents: SomeAgents, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would start itself anew."""

    def refuse(*arguments: Any, **settings: Any) -> None:
        raise EngineLost("this program has called ray.shutdown()")

    agents.start([NODE.node_id])
    monkeypatch.setattr(agents._connection, "ask", refuse)
    monkeypatch.setattr(module, "ray", SimpleNamespace())
    with pytest.raises(EngineLost):
        Agents._note_ends(agents)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ray.exceptions.NodeDiedError("its node died"), UnusableNodeError),
        (ray.exceptions.WorkerCrashedError(), UnusableNodeError),
        (ray.exceptions.GetTimeoutError("late"), UnusableNodeError),
        (ray.exceptions.RuntimeEnvSetupError("no such package"), ray.exceptions.RayError),
    ],
)
def test_a_task_that_is_lost_while_it_asks_for_gpus_makes_its_node_unusable(
    error: Exception, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that other nodes are tried, or the same one again."""

    def get(reference: Any, timeout: float) -> None:
        raise error

    task = SimpleNamespace(options=lambda **settings: SimpleNamespace(remote=object))
    monkeypatch.setattr(reservation, "ray", SimpleNamespace(remote=lambda function: task, get=get))
    room = reservation.Reservation(played_connection(), object(), Placement.sketch(1, {"GPU": 1}))
    room.node_ids = [NODE.node_id]
    with pytest.raises(expected) as raised:
        room.gpu_ids({NODE.node_id: NODE}, time.monotonic() + 5)
    if expected is UnusableNodeError:
        assert str(raised.value).startswith("h1 (10.0.0.1): ")


def test_an_engine_that_cannot_be_made_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt would take it for the program's own."""
    closed: list[bool] = []
    connection = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr(engine_module, "Connection", lambda *arguments: connection)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.setenv("RAY_TLS_SERVER_CERT", "/nonexistent")
    with pytest.raises(EngineError, match="/nonexistent"):
        engine_module.RayEngine()
    assert closed == [True]
