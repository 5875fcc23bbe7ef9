"""The engine for a Ray cluster: Ray places and reserves, an agent on each machine starts the workers.

Ray is asked for a placement group, in whose bundles nothing runs, and for one actor per machine that holds our agent.
Everything else is ours: the connections, the start, exit statuses, stacks, logs and the end.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from paceline.air.errors import ConfigError, EngineError, StartupTimeoutError
from paceline.engine.base import Capabilities, Placement, WorkerGroup
from paceline.engine.local.warden_client import absolute_sys_path
from paceline.engine.places import Node, lay_out
from paceline.engine.ray.actor import AgentHolder
from paceline.engine.reactor import ReactorEngine
from paceline.engine.remote import messages
from paceline.engine.remote.agent import filesystem_id
from paceline.engine.remote.group import AgentLine, RemoteGroup
from paceline.engine.remote.line import AGENT, Caller, Listener

AGENT_START_S = 60.0
SILENCE_S = 60.0
"""An agent that has not heard from the driver for so long ends."""
POLL_S = 0.05


class RayMachine:
    """One machine of the cluster, with our agent on it."""

    def __init__(self, node_id: str, address: str, hostname: str, line: AgentLine, holder: Any) -> None:
        self.node_id = node_id
        self.address = address
        self.hostname = hostname
        self.line = line
        self.holder = holder


class RayEngine(ReactorEngine):
    name = "ray"

    def __init__(self, address: str | None = None, **init_settings: Any) -> None:
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            address = address or os.environ.get("RAY_ADDRESS") or "local"
            ray.init(address=address, log_to_driver=False, **init_settings)
        super().__init__()
        self._numbers = itertools.count(1)
        self._agent_numbers = itertools.count(1)
        self._token = secrets.token_bytes(32)
        self._listener = Listener(ray.util.get_node_ip_address(), self._token, self.reactor, self._on_connected)
        self._machines: dict[str, RayMachine] = {}
        """By Ray's id of the node."""
        self._lines: dict[int, AgentLine] = {}
        self._by_number: dict[int, RemoteGroup] = {}
        self._reserved: dict[int, PlacementGroup] = {}
        self._filesystem = filesystem_id()

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Whether files are shared is known once every machine has an agent."""
        machines = self._machines_on([node["NodeID"] for node in _alive_nodes()])
        return Capabilities(shares_filesystem=all(self._is_drivers(machine) for machine in machines))

    def _is_drivers(self, machine: RayMachine) -> bool:
        facts = machine.line.facts
        return facts is not None and facts.filesystem == self._filesystem

    def resources(self) -> dict[str, float]:
        total = ray.cluster_resources()
        return {"CPU": total.get("CPU", 0.0), "GPU": total.get("GPU", 0.0)}

    def gpu_names(self) -> list[str]:
        return [str(number) for number in range(int(self.resources()["GPU"]))]

    def warm(self, preload: Sequence[str]) -> None:
        for machine in self._machines_on([node["NodeID"] for node in _alive_nodes()]):
            machine.line.tell(messages.Warm(list(preload)))

    # Machines

    def _machines_on(self, node_ids: Sequence[str]) -> list[RayMachine]:
        """The machines, with an agent on each."""
        found = {node["NodeID"]: node for node in _alive_nodes()}
        for node_id in dict.fromkeys(node_ids):
            machine = self._machines.get(node_id)
            if machine is None or machine.line.lost:
                if node_id not in found:
                    raise EngineError(f"the node {node_id} has left the Ray cluster")
                self._machines[node_id] = self._start_agent(found[node_id])
        machines = [self._machines[node_id] for node_id in node_ids]
        self._wait_for_agents(machines)
        return machines

    def _start_agent(self, node: dict[str, Any]) -> RayMachine:
        number = next(self._agent_numbers)
        hostname, address = node["NodeManagerHostname"], node["NodeManagerAddress"]
        line = self._lines[number] = AgentLine(f"{hostname} ({address})", self.reactor)
        settings = messages.AgentSettings(self._listener.address, self._token, number, SILENCE_S)
        holder_class: Any = ray.remote(AgentHolder)
        holder = holder_class.options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote()
        holder.start.remote(messages.encode(settings), absolute_sys_path())
        return RayMachine(node["NodeID"], address, hostname, line, holder)

    def _wait_for_agents(self, machines: Sequence[RayMachine]) -> None:
        deadline = time.monotonic() + AGENT_START_S
        while late := [machine for machine in machines if machine.line.facts is None]:
            if time.monotonic() > deadline:
                labels = ", ".join(machine.line.label for machine in late)
                raise StartupTimeoutError(f"no agent answered within {AGENT_START_S:g} s from {labels}")
            self.reactor.run_once(POLL_S)

    def _on_connected(self, caller: Caller, sock: socket.socket) -> None:
        if caller.kind == AGENT:
            line = self._lines.get(caller.number)
            if line is not None and not line.lost:
                line.attach(sock)
                return
        else:
            group = self._by_number.get(caller.number)
            if group is not None:
                group.on_connected(caller.rank, sock)
                return
        sock.close()

    # Groups

    def start_group(self, placement: Placement) -> WorkerGroup:
        self._check(placement)
        reserved = self._reserve(placement)
        try:
            bundles = placement_group_table(reserved)["bundles_to_node_id"]
            order = list(dict.fromkeys(bundles[number] for number in range(placement.world_size)))
            # Ranks on one machine are neighbours.
            ranked = sorted(range(placement.world_size), key=lambda number: order.index(bundles[number]))
            machines = self._machines_on([bundles[number] for number in ranked])
            nodes = self._nodes(machines, self._gpu_ids(placement, reserved, ranked))
            places = lay_out(placement, nodes)
            number = next(self._numbers)
            lines = [machine.line for machine in machines]
            group = RayGroup(self, number, placement, places, lines, self.reactor)
        except BaseException:
            remove_placement_group(reserved)
            raise
        self._reserved[number] = reserved
        self._by_number[number] = group
        self.groups.add(group)
        group.launch()
        return group

    def _check(self, placement: Placement) -> None:
        if os.getpid() != self._pid:
            raise EngineError("this engine belongs to the process that was forked; choose a new one here")
        if self._closed:
            raise EngineError("this engine was closed; choose a new one")
        if [request.rank for request in placement.workers] != list(range(placement.world_size)):
            raise ValueError("the workers of a placement must be in the order of their ranks, from 0 on")

    def _reserve(self, placement: Placement) -> PlacementGroup:
        bundle = dict(placement.resources) or {"CPU": 1.0}
        reserved = placement_group([bundle] * placement.world_size, strategy="PACK")
        deadline = time.monotonic() + placement.start_timeout_s
        try:
            while not reserved.wait(0.2):
                state = placement_group_table(reserved)["stats"]["scheduling_state"]
                if state == "INFEASIBLE":
                    raise ConfigError(self._infeasible_text(placement, bundle))
                if time.monotonic() > deadline:
                    raise StartupTimeoutError(
                        f"the Ray cluster had no room for {placement.world_size} x {bundle} within "
                        f"{placement.start_timeout_s:g} s; free now: {ray.available_resources()}"
                    )
        except BaseException:
            remove_placement_group(reserved)
            raise
        return reserved

    def _infeasible_text(self, placement: Placement, bundle: dict[str, float]) -> str:
        has = "; ".join(
            f"{node['NodeManagerHostname']} has "
            + ", ".join(f"{name} {node['Resources'].get(name, 0):g}" for name in bundle)
            for node in _alive_nodes()
        )
        wants = ", ".join(f"{name} {amount:g}" for name, amount in bundle.items())
        return f"the Ray cluster can never run {placement.world_size} workers with {wants} each: {has}"

    def _gpu_ids(self, placement: Placement, reserved: PlacementGroup, ranked: Sequence[int]) -> list[tuple[str, ...]]:
        """Those that Ray gave to each bundle: a short task in each of them knows."""
        if not placement.resources.get("GPU"):
            return [()] * len(ranked)
        asked = [
            ray.remote(_gpus_here)
            .options(
                num_cpus=0,
                num_gpus=placement.resources["GPU"],
                scheduling_strategy=PlacementGroupSchedulingStrategy(reserved, placement_group_bundle_index=number),
            )
            .remote()
            for number in ranked
        ]
        return [tuple(ids) for ids in ray.get(asked, timeout=placement.start_timeout_s)]

    def _nodes(self, machines: Sequence[RayMachine], gpus: Sequence[tuple[str, ...]]) -> list[Node]:
        is_drivers = all(self._is_drivers(machine) for machine in machines)
        devices: dict[str, dict[str, None]] = {}
        for machine, ids in zip(machines, gpus, strict=True):
            devices.setdefault(machine.node_id, {}).update(dict.fromkeys(ids))
        nodes = []
        for machine in machines:
            facts = machine.line.facts
            assert facts is not None
            gpu_ids = tuple(devices[machine.node_id])
            nodes.append(
                Node(machine.node_id, machine.address, facts.hostname, facts.cores, gpu_ids, is_drivers=is_drivers)
            )
        return nodes

    def group_ended(self, number: int) -> None:
        """What it had reserved is free again."""
        self._by_number.pop(number, None)
        reserved = self._reserved.pop(number, None)
        if reserved is not None and ray.is_initialized():
            remove_placement_group(reserved)

    def release(self) -> None:
        for machine in self._machines.values():
            machine.line.close()
            ray.kill(machine.holder)
        self._listener.close()
        if self._owns_ray:
            ray.shutdown()


class RayGroup(RemoteGroup):
    """A group whose room in the cluster is reserved until it ends."""

    def __init__(self, engine: RayEngine, number: int, *arguments: Any) -> None:
        super().__init__(number, *arguments)
        self._engine = engine

    def shutdown(self, grace: float = 0.0) -> list[str]:
        try:
            return super().shutdown(grace)
        finally:
            if os.getpid() == self._pid:
                self._engine.group_ended(self.number)


def _gpus_here() -> list[str]:
    return [str(number) for number in ray.get_gpu_ids()]


def _alive_nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]
