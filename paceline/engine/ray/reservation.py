"""Room for a group of workers in a Ray cluster: a placement group, in whose bundles nothing runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError, RuntimeEnvSetupError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from paceline.air.errors import ConfigError, NoRoomError, StartCancelledError
from paceline.engine.base import Placement
from paceline.engine.ray.agents import Agents, UnusableNodeError
from paceline.engine.ray.connection import Connection
from paceline.engine.ray.room import (
    ClusterNode,
    bundles_of,
    fits,
    has_in_words,
    infeasible_text,
    wanted_in_words,
)

ANNOUNCE_S = 10.0
"""A longer wait for room is announced."""
STEP_S = 0.2
NODE_LABEL = "ray.io/node-id"


class Reservation:
    """Room that is held until it is given back."""

    def __init__(self, connection: Connection, group: PlacementGroup, placement: Placement) -> None:
        self._connection = connection
        self._group = group
        self._placement = placement
        self.node_ids: list[str] = []
        """Where each worker is to be; known once it is placed."""
        self.beside_ids: list[str] = []
        """Where the room beside the workers is."""

    def is_placed(self, wait_s: float) -> bool:
        places = self._connection.ask(_places, self._group, wait_s)
        count = self._placement.world_size
        self.node_ids, self.beside_ids = places[:count], places[count:]
        return bool(places)

    def gpu_ids(self, nodes: Mapping[str, ClusterNode], deadline: float) -> list[tuple[str, ...]]:
        """Those that Ray gave to each bundle: a short task in each of them knows. `nodes` are theirs, by id.

        Raises UnusableNodeError if a task does not come back.
        """
        gpus, count = self._placement.resources.get("GPU", 0.0), self._placement.world_size
        if not gpus:
            return [()] * count
        within_s = max(1.0, deadline - time.monotonic())
        asked = [nodes[node_id] for node_id in self.node_ids]
        found = self._connection.ask(_ask_for_gpus, self._group, gpus, asked, within_s, within_s=within_s + 5.0)
        return [tuple(ids) for ids in found]

    @property
    def name(self) -> str:
        """Ray's."""
        name: str = self._group.id.hex()
        return name

    def give_back(self) -> None:
        self._connection.tell(remove_placement_group, self._group)


def reserve(
    connection: Connection, agents: Agents, placement: Placement, deadline: float, avoid: Callable[[], Iterable[str]]
) -> Reservation:
    """Wait for room on nodes that are not to be avoided, as far as the others suffice.

    Raises ConfigError at once for what can never fit, NoRoomError when the time is up, StartCancelledError when
    the room is not wanted any more.
    """
    nodes = agents.nodes()
    check_feasible(placement, agents)
    began = time.monotonic()
    is_announced = False
    while True:
        avoided = {node_id for node_id in avoid() if node_id in nodes}
        if not fits(placement, [node.resources for name, node in nodes.items() if name not in avoided]):
            avoided = set()
        held = created(connection, placement, avoided)
        try:
            while not held.is_placed(STEP_S):
                if placement.is_unwanted is not None and placement.is_unwanted():
                    raise StartCancelledError("the run is to end, and had no room on the Ray cluster yet")
                waited = time.monotonic() - began
                if time.monotonic() > deadline:
                    raise NoRoomError(_waiting_text(connection, agents, placement, waited))
                if waited > ANNOUNCE_S and not is_announced:
                    is_announced = True
                    if placement.notify is not None:
                        placement.notify(_waiting_text(connection, agents, placement, waited))
                if avoided and not fits(placement, [node.resources for node in others(agents, avoided)]):
                    break  # A node has left meanwhile: those that were avoided are needed.
                check_feasible(placement, agents)
            else:
                return held
        except BaseException:
            held.give_back()
            raise
        held.give_back()
        nodes = agents.nodes()


def others(agents: Agents, avoided: set[str]) -> list[ClusterNode]:
    """The nodes that are not avoided."""
    return [node for name, node in agents.nodes().items() if name not in avoided]


def check_feasible(placement: Placement, agents: Agents) -> None:
    """Nodes that have left count: they may come back, and a run that lost one waits for it."""
    nodes = list(agents.nodes().values())
    if not fits(placement, [node.resources for node in (*nodes, *agents.left.values())]):
        raise ConfigError(infeasible_text(placement, nodes))


def created(
    connection: Connection, placement: Placement, avoided: set[str], on: Sequence[str] | None = None
) -> Reservation:
    """A reservation that is placed once there is room; with `on`, on the node that is given for each rank."""
    bundles = bundles_of(placement)
    options: dict[str, Any] = {"strategy": placement.strategy}
    if on is not None:
        anywhere: list[dict[str, str]] = [{}] * (len(bundles) - len(on))
        options["bundle_label_selector"] = [*({NODE_LABEL: node_id} for node_id in on), *anywhere]
    elif avoided:
        options["bundle_label_selector"] = [{NODE_LABEL: f"!in({','.join(sorted(avoided))})"}] * len(bundles)
    group = connection.ask(lambda: placement_group(bundles, **options), undo=remove_placement_group)
    return Reservation(connection, group, placement)


def _places(group: PlacementGroup, wait_s: float) -> list[str]:
    """The node of each bundle; empty as long as it has none."""
    if not group.wait(wait_s):
        return []
    by_bundle: Mapping[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return [by_bundle[number] for number in sorted(by_bundle)]


def _waiting_text(connection: Connection, agents: Agents, placement: Placement, waited_s: float) -> str:
    free = connection.ask(free_by_node)
    nodes = list(agents.nodes().values())
    left = [node.label for node in agents.left.values()]
    gone = f"\nThe cluster has lost {', '.join(left)}." if left else ""
    limit = placement.resource_timeout_s
    how_long = "until there is some" if limit is None else f"for at most resource_timeout_s={limit:g} s"
    return (
        f"the Ray cluster has had no room for {wanted_in_words(placement)} for {waited_s:.0f} s. Free on its nodes:\n"
        f"{has_in_words(placement, nodes, free)}{gone}\n"
        f"The run waits {how_long}. Press Ctrl-C to stop it."
    )


def free_by_node() -> dict[str, dict[str, float]]:
    from ray._private.state import available_resources_per_node  # What ray.available_resources() adds up.

    free: dict[str, dict[str, float]] = available_resources_per_node()
    return free


def _ask_for_gpus(group: PlacementGroup, gpus: float, nodes: Sequence[ClusterNode], within_s: float) -> list[list[str]]:
    deadline = time.monotonic() + within_s
    task: Any = ray.remote(_gpus_here)
    asked = [
        task.options(
            num_cpus=0,
            num_gpus=gpus,
            max_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
        ).remote()
        for number in range(len(nodes))
    ]
    found: list[list[str]] = []
    for node, answer in zip(nodes, asked, strict=True):
        try:
            found.append(ray.get(answer, timeout=max(0.0, deadline - time.monotonic())))
        except GetTimeoutError:
            raise UnusableNodeError(node, "a task that asks for its GPUs does not come back") from None
        except (RayTaskError, RuntimeEnvSetupError):  # It would fail everywhere.
            raise
        except RayError as error:
            raise UnusableNodeError(node, f"a task that asks for its GPUs was lost: {error}") from error
    return found


def _gpus_here() -> list[str]:
    return [str(number) for number in ray.get_gpu_ids()]
