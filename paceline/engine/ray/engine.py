"""The engine for a Ray cluster: Ray places and reserves, an agent on each node starts the workers.

Ray is asked for a placement group, in whose bundles nothing runs, and for one actor per node that holds our agent.
Everything else is ours: the connections, the start, exit statuses, stacks, logs and the end.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray

from paceline.air.errors import EngineLost, NoRoomError, StartupTimeoutError, WorkerDiedError, WorkerFailure
from paceline.engine.base import Capabilities, ClusterAccess, Placement, WorkerGroup
from paceline.engine.channel_group import GroupMember
from paceline.engine.failures import ENGINE_LOST
from paceline.engine.places import Node, WorkerPlace, lay_out
from paceline.engine.ray.agents import Agents, NodeAgent, UnusableNodeError
from paceline.engine.ray.connection import Connection
from paceline.engine.ray.held import LOOK_S, HeldRoom, HeldRooms
from paceline.engine.ray.reservation import Reservation, free_by_node, reserve
from paceline.engine.ray.room import room_for, wanted_in_words
from paceline.engine.reactor import ReactorEngine
from paceline.engine.remote import messages
from paceline.engine.remote.agent import filesystem_id
from paceline.engine.remote.group import RemoteGroup
from paceline.engine.remote.line import AGENT, Caller, Listener
from paceline.engine.remote.tls import TlsRelay

SILENCE_S = 60.0
"""An agent that has not heard from the driver for so long ends."""
LEAST_TRY_S = 1.0
"""What a node that cannot be used costs of start_timeout_s at least, so that there is an end of trying others."""
OTHER_ROOM_S = 2.0
"""How long other room is looked for when what was held cannot be used."""


class RayEngine(ReactorEngine):
    name = "ray"
    capabilities = Capabilities(chooses_nodes=True)

    def __init__(self, address: str | None = None, **init_settings: Any) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._by_number: dict[int, RemoteGroup] = {}
        self._reserved: dict[int, Reservation] = {}
        self._filesystem = filesystem_id()
        self._agents: Agents | None = None
        self._connection = Connection(address, init_settings, self._tend)
        token = secrets.token_bytes(32)
        tls_variables = _tls_variables()
        try:
            tls = None if tls_variables is None else TlsRelay.from_variables(tls_variables)
            self._listener = Listener(ray.util.get_node_ip_address(), token, self.reactor, self._on_connected, tls)
        except BaseException:  # Otherwise the next attempt would take our connection for the program's own.
            self._connection.close()
            raise
        settings = messages.AgentSettings(self._listener.address, token, 0, SILENCE_S, tls_variables=tls_variables)
        self._agents = Agents(self._connection, self.reactor, settings)
        self._held = HeldRooms(self._connection, self._agents)

    @property
    def agents(self) -> Agents:
        assert self._agents is not None
        return self._agents

    @property
    def lost(self) -> str:
        if self._connection.lost or self._connection.is_usable:
            return self._connection.lost
        return "this program is not connected to the cluster any more"

    def describe(self) -> str:
        if self._connection.is_own_cluster:
            return "a Ray cluster of its own on this machine"
        return f"the Ray cluster at {self._connection.address}"

    def _is_drivers(self, agent: NodeAgent) -> bool:
        facts = agent.line.facts
        return facts is not None and facts.filesystem == self._filesystem

    def resources(self) -> dict[str, float]:
        total = {"CPU": 0.0, "GPU": 0.0}
        for node in self.agents.nodes().values():
            for name in total:
                total[name] += node.resources.get(name, 0.0)
        return total

    def gpu_names(self) -> list[str]:
        return [str(number) for number in range(int(self.resources()["GPU"]))]

    def warm(self, preload: Sequence[str], world_size: int | None = None) -> None:
        self.agents.start(self.agents.nodes_for(world_size), preload)

    def _tend(self) -> None:
        """In the thread of the connection, about twice a second."""
        if self._agents is None or self._closed:
            return
        if self._connection.lost:
            self._agents.lose_all(self._connection.lost)
            self.reactor.wake()
        else:
            self._agents.tend(listens=not self._by_number)
            self._announce_drains(self._agents)

    def _announce_drains(self, agents: Agents) -> None:
        if not self._by_number:
            return
        agents.look_for_drains()
        for node_id, gone_at in agents.draining.items():
            seconds_left = None if gone_at is None else max(0.0, gone_at - time.time())
            for group in list(self._by_number.values()):
                group.note_drain(node_id, seconds_left)

    def _on_connected(self, caller: Caller, sock: socket.socket) -> None:
        if caller.kind == AGENT:
            if self.agents.on_connected(caller.number, sock):
                return
        else:
            group = self._by_number.get(caller.number)
            if group is not None:
                group.on_connected(caller.rank, sock)
                return
        sock.close()

    # Groups

    def reserve(self, placement: Placement, on: Sequence[str] | None = None) -> HeldRoom | None:
        self._check(placement)
        self.agents.try_again()
        return self._held.reserve(placement, on)

    def what_is_gone(self, placement: Placement) -> str:
        return self._held.what_is_gone(placement)

    def room(self, bundle: Mapping[str, float]) -> int:
        """On nodes that are there and stay: not those that drain, nor those whose agent was just lost."""
        if self.lost:
            raise EngineLost(self.lost)
        self._held.drop_unused()
        self._connection.ask(self.agents.look_for_drains)
        nodes, free = self.agents.nodes(fresh=True), self._connection.ask(free_by_node)
        unusable = self.agents.suspects()
        return room_for(bundle, [free.get(name, {}) for name in nodes if name not in unusable])

    def start_group(self, placement: Placement) -> WorkerGroup:
        self._check(placement)
        if isinstance(placement.reservation, HeldRoom):
            deadline = time.monotonic() + placement.start_timeout_s
            return self._start_in(placement.reservation, placement, deadline)
        self.agents.try_again()
        self._held.drop_unused()
        problem, left_s = "", placement.start_timeout_s
        limit = placement.resource_timeout_s
        waits_until = float("inf") if limit is None else time.monotonic() + limit
        while True:
            try:
                reserved = reserve(self._connection, self.agents, placement, waits_until, self.agents.suspects)
            except NoRoomError as error:
                raise NoRoomError(f"{error}{problem}") from None
            began = time.monotonic()
            try:
                return self._start_on(reserved, placement, began + left_s)
            except UnusableNodeError as error:
                problem = f"\nBefore that: {error}"
                left_s -= max(LEAST_TRY_S, time.monotonic() - began)
                if left_s <= 0:
                    raise StartupTimeoutError(f"the workers did not get ready in time: {error}") from None
            except StartupTimeoutError as error:
                raise StartupTimeoutError(f"{error}{problem}") from None

    def _start_in(self, held: HeldRoom, placement: Placement, deadline: float) -> WorkerGroup:
        """In room that is held, or in other room that there is. Waiting for room is up to whoever reserves it."""
        problem = _why_unusable(held, placement)
        if not problem:
            try:
                return self._start_on(held.room, placement, deadline, gives_back=False)
            except UnusableNodeError as error:
                problem = str(error)
        held.release()  # Otherwise the group could wait for its own room.
        return self._start_elsewhere(placement, deadline, problem)

    def _start_elsewhere(self, placement: Placement, deadline: float, problem: str) -> WorkerGroup:
        """`problem` is that of the room that was reserved. Raises WorkerDiedError: the run may try again."""
        other = self._other_room(placement)
        if other is not None:
            try:
                return self._start_on(other.room, placement, deadline)
            except UnusableNodeError as error:
                problem = str(error)
        text = f"the room that was reserved cannot be used: {problem}"
        failure = WorkerFailure(rank=0, kind="engine", message=text, time_ns=time.monotonic_ns())
        raise WorkerDiedError(text, failure)

    def _other_room(self, placement: Placement) -> HeldRoom | None:
        """Room that is free may be found only at the second look: Ray may be busy."""
        deadline = time.monotonic() + OTHER_ROOM_S
        while (room := self.reserve(placement)) is None and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return room

    def _start_on(
        self, reserved: Reservation, placement: Placement, deadline: float, *, gives_back: bool = True
    ) -> WorkerGroup:
        """The reservation is given back if that fails, else when the group ends; unless somebody else does."""
        number = next(self._numbers)
        try:
            order = list(dict.fromkeys(reserved.node_ids))
            # Ranks on one node are neighbours.
            ranked = sorted(range(placement.world_size), key=lambda bundle: order.index(reserved.node_ids[bundle]))
            agents = self.agents.ready([reserved.node_ids[bundle] for bundle in ranked], deadline)
            by_bundle = reserved.gpu_ids({agent.node.node_id: agent.node for agent in agents}, deadline)
            places = self._places(placement, agents, [by_bundle[bundle] for bundle in ranked])
            lines = [agent.line for agent in agents]
            access = ClusterAccess(self._connection.address, reserved.name)
            group = RayGroup(self, access, number, placement, places, lines, self.reactor)
        except BaseException:
            if gives_back:
                reserved.give_back()
            raise
        if gives_back:
            self._reserved[number] = reserved
        self._by_number[number] = group
        self.groups.add(group)
        group.launch(deadline)
        return group

    def _check(self, placement: Placement) -> None:
        self.check_usable(placement)
        if self.lost:
            raise EngineLost(self.lost)

    def _places(
        self, placement: Placement, agents: Sequence[NodeAgent], gpus: Sequence[tuple[str, ...]]
    ) -> tuple[WorkerPlace, ...]:
        """By rank, with the GPUs that Ray has chosen for each."""
        is_drivers = all(self._is_drivers(agent) for agent in agents)
        by_node: dict[str, dict[str, None]] = {}
        for agent, ids in zip(agents, gpus, strict=True):
            by_node.setdefault(agent.node.node_id, {}).update(dict.fromkeys(ids))
        nodes = []
        for agent in agents:
            facts, node = agent.line.facts, agent.node
            assert facts is not None
            devices = tuple(by_node[node.node_id])
            nodes.append(Node(node.node_id, node.address, facts.hostname, facts.cores, devices, is_drivers=is_drivers))
        places = lay_out(replace(placement, devices=None), nodes)
        if not placement.resources.get("GPU") or placement.share_gpus:
            return places
        return tuple(replace(place, gpus=ids) for place, ids in zip(places, gpus, strict=True))

    def group_ended(self, number: int) -> None:
        """What it had reserved is free again."""
        self._by_number.pop(number, None)
        reserved = self._reserved.pop(number, None)
        if reserved is not None:
            reserved.give_back()

    def release(self) -> None:
        self._held.close()
        self.agents.close()
        self._listener.close()
        self._connection.close()


def _why_unusable(held: HeldRoom, placement: Placement) -> str:
    """Empty if it is not known to be."""
    if not held.covers(placement):
        return f"it does not suffice for {wanted_in_words(placement)}"
    if held.is_released:
        return "it was given back"
    return "a node of it is gone" if held.is_lost else ""


def _tls_variables() -> tuple[str, str, str] | None:
    """Where each node finds its certificate, key and authority, if Ray's own connections are encrypted."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    return "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"


class RayGroup(RemoteGroup):
    """A group whose room in the cluster is reserved until it ends."""

    def __init__(self, engine: RayEngine, access: ClusterAccess, number: int, *arguments: Any) -> None:
        super().__init__(number, *arguments)
        self._engine = engine
        self._access = access

    def cluster(self) -> ClusterAccess:
        return self._access

    def fail_with(self, member: GroupMember, failure: WorkerFailure) -> None:
        """That the whole cluster is gone is more than the loss of a worker."""
        if failure.kind == "engine" and failure.message == self._engine.lost:
            failure = replace(failure, exception_type=ENGINE_LOST)
        super().fail_with(member, failure)

    def launch(self, deadline: float | None = None) -> None:
        try:
            super().launch(deadline)
        except WorkerDiedError as error:
            failure = error.failure
            if failure is None or failure.kind != "engine" or not self.has_lost_node(failure.rank):
                raise
            raise WorkerDiedError(str(error), replace(failure, kind="node_lost")) from None

    def has_lost_node(self, rank: int) -> bool:
        return not self._engine.lost and self._engine.agents.has_left(self.places[rank].node.node_id)

    def shutdown(self, grace: float = 0.0) -> list[str]:
        try:
            return super().shutdown(grace)
        finally:
            if os.getpid() == self._pid:
                self._engine.group_ended(self.number)
