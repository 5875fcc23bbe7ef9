"""Where the workers of a group run: on which machine, beside whom, with which GPUs and how many threads.

A Placement says what is wanted, the places of a group what came of it. Engines make them with `lay_out`.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.air.resources import usable_cores
from paceline.engine.devices import VISIBLE_VARIABLE, assign_gpus, usable_gpus

if TYPE_CHECKING:
    from paceline.engine.base import Placement

LOOPBACK = "127.0.0.1"
FAIR_SHARE = 0
"""As the number of threads: what the environment says, else the worker's CPUs, else its share of the cores."""
THREADS_VARIABLE = "OMP_NUM_THREADS"
ADDRESS_VARIABLE = "PACELINE_NODE_ADDRESS"
"""Where the other workers of its group reach a worker, unless all are on the driver's machine."""


@dataclass(frozen=True)
class Node:
    """A machine, or what stands for one. Its workers share its address, cores, GPUs and process ids."""

    node_id: str
    address: str
    """Where workers of the same group reach it."""
    hostname: str
    cores: int
    gpus: tuple[str, ...] = ()
    is_drivers: bool = False
    """The driver runs here too: process ids and paths mean the same to it."""


@dataclass(frozen=True)
class WorkerPlace:
    """Where one worker of a group runs."""

    rank: int
    node: Node
    node_rank: int
    local_rank: int
    local_world_size: int
    gpus: tuple[str, ...] | None = None
    """The ids that the worker sees; None: nothing limits what it sees."""
    threads: int | None = None
    """For numeric libraries; None leaves them alone."""


def drivers_node(gpus: float | None = None) -> Node:
    """This machine, for engines whose workers are all here; `gpus` is how many were declared."""
    devices = tuple(usable_gpus(gpus)) if gpus else ()
    hostname = socket.gethostname()
    return Node(hostname, LOOPBACK, hostname, usable_cores(), devices, is_drivers=True)


def lay_out(
    placement: Placement, nodes: Sequence[Node], environment: Mapping[str, str] | None = None
) -> tuple[WorkerPlace, ...]:
    """The places of ranks that were put on these nodes, one for each rank. Raises ConfigError if their GPUs do not
    suffice. `environment` is the one that workers find: it may say how many threads they use."""
    node_ranks = {node.node_id: number for number, node in enumerate(dict.fromkeys(nodes))}
    sizes = Counter(node.node_id for node in nodes)
    gpus = {node.node_id: iter(_gpus_of(placement, node, sizes[node.node_id])) for node in dict.fromkeys(nodes)}
    seen: Counter[str] = Counter()
    places = []
    for rank, node in enumerate(nodes):
        places.append(
            WorkerPlace(
                rank=rank,
                node=node,
                node_rank=node_ranks[node.node_id],
                local_rank=seen[node.node_id],
                local_world_size=sizes[node.node_id],
                gpus=next(gpus[node.node_id]),
                threads=_threads(placement, node.cores // sizes[node.node_id], environment or {}),
            )
        )
        seen[node.node_id] += 1
    return tuple(places)


def _gpus_of(placement: Placement, node: Node, workers: int) -> list[tuple[str, ...] | None]:
    """What each of the workers on a node sees."""
    each = placement.resources.get("GPU", 0.0)
    if not each:
        return [() if placement.hide_other_gpus else None] * workers
    named = placement.devices if node.is_drivers else None  # Elsewhere the names mean nothing.
    assigned = assign_gpus(workers, each, node.gpus if named is None else named)
    if placement.share_gpus:
        assigned = [list(dict.fromkeys(device for devices in assigned for device in devices))] * workers
    return [tuple(devices) for devices in assigned]


def _threads(placement: Placement, share: int, environment: Mapping[str, str]) -> int | None:
    if placement.threads != FAIR_SHARE:
        return placement.threads
    chosen = environment.get(THREADS_VARIABLE, "")
    if chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    cpus = placement.resources.get("CPU", 0.0)
    return int(cpus) if cpus > 1 else max(1, share)


def variables(placement: Placement, place: WorkerPlace, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What to add to the environment that a worker finds, which is the driver's unless another is given."""
    found = os.environ if environment is None else environment
    request = placement.workers[place.rank]
    added = {name: value for name, value in request.defaults.items() if name not in found}
    added.update(request.env)
    if not place.node.is_drivers:
        added[ADDRESS_VARIABLE] = place.node.address
    if place.gpus is not None:
        added[VISIBLE_VARIABLE] = ",".join(place.gpus)
    return added
