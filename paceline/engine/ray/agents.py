"""The agents that a driver has on the nodes of a Ray cluster: started when they are needed, and kept."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from paceline.air.errors import EngineError, EngineLost, StartupTimeoutError
from paceline.engine.local.engine import make_room_for_fds
from paceline.engine.local.warden_client import absolute_sys_path
from paceline.engine.ray.actor import AgentHolder
from paceline.engine.ray.connection import Connection
from paceline.engine.ray.room import ClusterNode, alive_nodes, draining_nodes
from paceline.engine.reactor import Reactor
from paceline.engine.remote import messages
from paceline.engine.remote.agent_line import AgentLine, catch_up, end_agents
from paceline.engine.remote.tls import FDS_PER_CONNECTION

AGAIN_S = 10.0
"""How long the agent that replaces a lost one may take: Ray may not have noticed yet that the node is gone."""
ROLL_CALL_S = 5.0
"""How long an agent may take to answer when a group is about to be started."""
NODES_FOR_S = 1.0
"""How long an answer of Ray about its nodes is believed."""
WARM_ANYWAY = 8
"""On so many nodes agents get ready, though a group has fewer workers: nobody knows which Ray will choose."""
LEFT_FOR_S = 3600.0
"""How long a node that has left may come back. In a cloud it comes back under another address, as any node."""
GONE_WITHIN_S = 1.0
"""How long after its agent a node may end so that both are taken for one loss."""
REACH_S = 1.0
POLL_S = 0.05


class UnusableNodeError(Exception):
    """A node that Ray has chosen does not answer: others must do."""

    def __init__(self, node: ClusterNode, why: str) -> None:
        super().__init__(f"{node.label}: {why}")
        self.node = node


class NodeAgent:
    """Our agent on one node, and the actor that holds it."""

    def __init__(
        self, number: int, node: ClusterNode, line: AgentLine, holder: Any, ended: Any, replaces_lost: bool
    ) -> None:
        self.number = number
        self.node = node
        self.line = line
        self.holder = holder
        self.ended = ended
        """Ray's reference to why the agent ended; there once it has."""
        self.started_at = time.monotonic()
        self.replaces_lost = replaces_lost
        """An earlier agent on the node was lost, so the node itself may be."""
        self.silent_at = 0.0
        """When it was last missing at a roll call."""
        self.preloads: list[tuple[str, ...]] = []
        """What to import once it is there."""

    @property
    def is_there(self) -> bool:
        return self.line.facts is not None and not self.line.lost

    @property
    def is_coming(self) -> bool:
        return self.line.facts is None and not self.line.lost

    @property
    def is_silent(self) -> bool:
        """It was missing at a roll call, and has said nothing since."""
        return self.line.heard_at < self.silent_at

    @property
    def is_late(self) -> bool:
        """Only after a loss: the first agent may have to wait until Ray has installed its runtime_env."""
        return self.is_coming and self.replaces_lost and time.monotonic() - self.started_at > AGAIN_S


class Agents:
    """One for each node that was asked for."""

    def __init__(self, connection: Connection, reactor: Reactor, settings: messages.AgentSettings) -> None:
        """`settings` are what all of them are started with, except for their numbers and nodes."""
        self._connection = connection
        self._reactor = reactor
        self._settings = settings
        self._lock = threading.Lock()
        """Two threads that want an agent on the same node start one."""
        self._fds_per_agent = 1 if settings.tls_variables is None else FDS_PER_CONNECTION
        self._numbers = itertools.count(1)
        self._by_node: dict[str, NodeAgent] = {}
        self._by_number: dict[int, NodeAgent] = {}
        self._replaced: dict[str, float] = {}
        """When the last agent was lost that has a successor, by node."""
        self._nodes: dict[str, ClusterNode] = {}
        self._nodes_at = float("-inf")
        self.left: dict[str, ClusterNode] = {}
        """Nodes that the cluster had, and has no more. They may come back under another id."""
        self._left_at: dict[str, float] = {}
        self.draining: dict[str, float | None] = {}
        """Nodes that are about to leave, and when (wall clock), if that is known."""

    # Nodes

    def nodes(self, *, fresh: bool = False) -> dict[str, ClusterNode]:
        """Those that Ray believes to be alive."""
        if fresh or time.monotonic() - self._nodes_at > NODES_FOR_S:
            found = alive_nodes(self._connection.ask(ray.nodes))
            self._note_left(found)
            self._nodes, self._nodes_at = found, time.monotonic()
        return self._nodes

    def nodes_for(self, world_size: int | None) -> list[str]:
        """Where to get ready for a group before Ray has chosen its nodes; None: everywhere."""
        names = sorted(self.nodes(), key=lambda name: name not in self._by_node)
        return names if world_size is None else names[: max(world_size, WARM_ANYWAY)]

    def _note_left(self, found: dict[str, ClusterNode]) -> None:
        now = time.monotonic()
        left = {name: node for name, node in self._nodes.items() if name not in found}
        self._left_at.update(dict.fromkeys(left, now))
        returned = {node.address for name, node in found.items() if name not in self._nodes}
        self.left = {
            name: node
            for name, node in {**self.left, **left}.items()
            if node.address not in returned and now - self._left_at[name] < LEFT_FOR_S
        }

    def has_left(self, node_id: str) -> bool:
        """Whether a node that has just lost its agent is gone itself.

        Ray notices that after a few seconds. Its own process on the node shows it at once, unless the agent was the
        first of the two to end.
        """
        deadline = time.monotonic() + GONE_WITHIN_S
        while True:
            try:
                node = self.nodes(fresh=True).get(node_id)
            except EngineError:  # The cluster does not answer.
                return False
            if node is None or not _listens(node):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)

    def look_for_drains(self) -> None:
        """Ask Ray, in the thread of the connection, which nodes are about to leave."""
        self.draining = draining_nodes()

    def suspects(self) -> set[str]:
        """Nodes whose agent was lost, is silent or does not come up: whether they are alive is not known. Also those
        that are about to leave."""
        return set(self.draining) | {
            name
            for name, agent in list(self._by_node.items())
            if agent.line.lost or agent.is_silent or (agent.is_coming and agent.replaces_lost)
        }

    def try_again(self) -> None:
        """Start agents where they were lost, now and then: the node may be sound."""
        now = time.monotonic()
        lost = [name for name, agent in list(self._by_node.items()) if agent.line.lost]
        self.start(name for name in lost if now - self._by_node[name].started_at > AGAIN_S)

    def lost_at(self) -> dict[str, float]:
        """When nodes last lost an agent, whether or not there is another one by now: it may not come up.

        Also when an agent fell silent that is still so.
        """
        agents = list(self._by_node.items())
        silent = {name: agent.silent_at for name, agent in agents if agent.is_silent}
        return {**self._replaced, **silent, **{name: agent.line.lost_at for name, agent in agents if agent.line.lost}}

    # Starting

    def start(self, node_ids: Iterable[str], preload: Sequence[str] = ()) -> None:
        """Start what is missing, without waiting for it; have it import these modules."""
        nodes, node_ids = self.nodes(), list(dict.fromkeys(node_ids))
        if missing := sum(node_id not in self._by_node for node_id in node_ids):
            make_room_for_fds(missing * self._fds_per_agent)
        for node_id in node_ids:
            with self._lock:
                agent = self._by_node.get(node_id)
                if (agent is None or agent.line.lost) and node_id in nodes:
                    if agent is not None:
                        self._connection.begin(ray.kill, agent.holder)
                        self._by_number.pop(agent.number, None)
                        self._replaced[node_id] = agent.line.lost_at
                    # Also if others have been tried since, and none came up.
                    was_there = agent is not None and (agent.line.facts is not None or agent.replaces_lost)
                    agent = self._by_node[node_id] = self._start(nodes[node_id], replaces_lost=was_there)
            if agent is not None and preload:
                agent.preloads.append(tuple(preload))

    def _start(self, node: ClusterNode, *, replaces_lost: bool) -> NodeAgent:
        number = next(self._numbers)
        settings = msgspec.structs.replace(self._settings, number=number, node=node.node_id)
        holder_class: Any = ray.remote(AgentHolder)
        options = holder_class.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        )
        holder = self._connection.ask(options.remote)
        ended = self._connection.ask(holder.hold.remote, messages.encode(settings), absolute_sys_path())
        line = AgentLine(node.label, self._reactor, is_encrypted=settings.tls_variables is not None)
        agent = NodeAgent(number, node, line, holder, ended, replaces_lost)
        self._by_number[number] = agent
        return agent

    def on_connected(self, number: int, sock: socket.socket) -> bool:
        """False if nobody waits for that agent."""
        agent = self._by_number.get(number)
        if agent is None or agent.line.lost:
            return False
        agent.line.attach(sock)
        return True

    def tend(self, *, listens: bool) -> None:
        """Show that the driver is alive, also to agents that no group uses, and let those that are new import.

        `listens` says that nobody else listens to agents at the moment.
        """
        while listens and any(agent.is_coming for agent in list(self._by_node.values())):
            before = self._reactor.rounds
            self._reactor.run_once(POLL_S)
            if self._reactor.rounds == before:
                break
        if listens:
            self._reactor.run_once(0.0)
        for agent in list(self._by_node.values()):
            if agent.is_there:
                agent.line.ping(time.monotonic())
                self._let_import(agent)

    def _let_import(self, agent: NodeAgent) -> None:
        while agent.preloads:
            agent.line.tell(messages.Warm(list(agent.preloads.pop(0))))

    # Waiting

    def ready(self, node_ids: Sequence[str], deadline: float) -> list[NodeAgent]:
        """The agents of these nodes; all of them have just answered.

        Raises UnusableNodeError for a node that does not answer while others do, EngineError for another version.
        """
        missing = [node_id for node_id in node_ids if node_id not in self.nodes()]
        if missing and (gone := [node_id for node_id in missing if node_id not in self.nodes(fresh=True)]):
            raise self._has_left(gone[0])
        catch_up(self._reactor)  # Agents may have hung up meanwhile.
        self.start(node_ids)
        by_node: dict[str, NodeAgent] = {}
        for node_id in node_ids:
            agent = self._by_node.get(node_id)
            if agent is None:  # The node has left since.
                raise self._has_left(node_id)
            by_node[node_id] = agent
        agents = list(by_node.values())
        self._wait_until_there(agents, deadline)
        for agent in agents:
            _check_versions(agent)
            self._let_import(agent)
        self._call_roll(agents)
        return [by_node[node_id] for node_id in node_ids]  # Other threads may have replaced some of them meanwhile.

    def _has_left(self, node_id: str) -> UnusableNodeError:
        node = self.left.get(node_id) or ClusterNode(node_id, "?", node_id, {})
        return UnusableNodeError(node, "it has left the cluster")

    def _wait_until_there(self, agents: Sequence[NodeAgent], deadline: float) -> None:
        def is_decided() -> bool:
            return any(agent.line.lost or agent.is_late for agent in agents) or all(agent.is_there for agent in agents)

        self._serve(is_decided, deadline)
        for agent in agents:
            if agent.line.lost:
                raise UnusableNodeError(agent.node, agent.line.lost)
            if agent.is_late:
                agent.line.lose(
                    f"no agent came up on {agent.node.label} within {time.monotonic() - agent.started_at:.0f} s"
                )
                raise UnusableNodeError(agent.node, agent.line.lost)
        if coming := [agent.node.label for agent in agents if agent.is_coming]:
            raise StartupTimeoutError(
                f"no agent came up in time on {', '.join(coming)}. Check that paceline is installed there, and "
                f"that these nodes can reach the driver at {self._settings.address[0]}:{self._settings.address[1]}."
            )

    def _serve(self, is_decided: Callable[[], bool], deadline: float) -> None:
        while True:
            self._note_ends()
            if is_decided() or time.monotonic() > deadline:
                return
            if self._connection.lost:
                raise EngineLost(self._connection.lost)
            self._reactor.run_once(POLL_S)

    def _note_ends(self) -> None:
        """Of agents that ended before they were there: the actor knows why."""
        coming = {agent.ended: agent for agent in list(self._by_node.values()) if agent.is_coming}
        if not coming:
            return
        ended = self._connection.ask(_those_that_are_there, list(coming))
        for reference in ended:
            agent = coming[reference]
            try:
                why = f"its agent ended: {self._connection.ask(ray.get, reference)}"
            except EngineError as error:
                why = f"its agent could not be started: {error}"
            agent.line.lose(f"{agent.node.label}: {why}")

    def _call_roll(self, agents: Sequence[NodeAgent]) -> None:
        """A node that has just lost its power has closed no connection.

        Other groups on it have a limit of their own, heartbeat_timeout_s: the agent is not taken from them.
        """
        asked_at = time.monotonic()
        for agent in agents:
            agent.line.tell(messages.Ping())
        self._serve(
            lambda: all(agent.line.heard_at > asked_at or agent.line.lost for agent in agents), asked_at + ROLL_CALL_S
        )
        missing = [agent for agent in agents if agent.line.heard_at <= asked_at or agent.line.lost]
        for agent in missing:
            agent.silent_at = time.monotonic()
            if not agent.line.groups:
                agent.line.lose(f"{agent.node.label} does not answer", "node_lost")
        if missing:
            raise UnusableNodeError(missing[0].node, missing[0].line.lost or f"no answer within {ROLL_CALL_S:g} s")

    # Ends

    def lose_all(self, why: str) -> None:
        """The cluster is gone."""
        for agent in list(self._by_number.values()):
            agent.line.lose(why)

    def close(self) -> None:
        end_agents([agent.line for agent in list(self._by_number.values())], self._reactor)
        holders = [agent.holder for agent in list(self._by_number.values())]
        self._connection.tell(lambda: [ray.kill(holder) for holder in holders])


def _listens(node: ClusterNode) -> bool:
    """Whether Ray's own process on the node takes connections; True if that cannot be found out."""
    if not node.port:
        return True
    try:
        socket.create_connection((node.address, node.port), REACH_S).close()
    except OSError:
        return False
    return True


def _those_that_are_there(references: list[Any]) -> list[Any]:
    there, _ = ray.wait(references, num_returns=len(references), timeout=0, fetch_local=False)
    return list(there)


def _check_versions(agent: NodeAgent) -> None:
    """Functions travel as byte code, and messages change with the version."""
    facts = agent.line.facts
    assert facts is not None
    here = messages.own_versions()
    if facts.python.split(".")[:2] != here[0].split(".")[:2]:
        raise EngineError(_other_version(agent, "Python", facts.python, here[0]))
    if facts.paceline != here[1]:
        raise EngineError(_other_version(agent, "paceline", facts.paceline, here[1]))


def _other_version(agent: NodeAgent, what: str, there: str, here: str) -> str:
    return (
        f"{agent.node.label} has {what} {there or 'of another version'}, and this program runs with {what} {here}. "
        "Install the same version on every node."
    )
