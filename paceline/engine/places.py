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

from paceline.air.errors import ConfigError
from paceline.air.resources import usable_cores

if TYPE_CHECKING:
    from paceline.engine.base import Placement

LOOPBACK = "127.0.0.1"
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
DRIVER_FOLDER = "/proc/driver/nvidia/gpus"

FAIR_SHARE = 0
"""As the number of threads: what the environment says, else the worker's CPUs, else its share of the cores."""
THREADS_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Read by libraries when they are loaded: for those that a worker or its children load themselves."""
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


def usable_memory() -> int | None:
    """Bytes that this machine, or a control group, lets this process have; None: that is not known."""
    from paceline.engine.local.linux import memory_limit

    return memory_limit()


def drivers_resources(cpus: float | None, gpus: float | None) -> dict[str, float]:
    """What this machine has, unless that was declared."""
    return {
        "CPU": float(usable_cores()) if cpus is None else cpus,
        "GPU": float(len(visible_gpus())) if gpus is None else gpus,
    }


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
    chosen = environment.get(THREADS_VARIABLES[0], "")
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


# GPUs


def visible_gpus(environment: dict[str, str] | None = None, driver_folder: str = DRIVER_FOLDER) -> list[str]:
    """The ids this process may use: what CUDA_VISIBLE_DEVICES says, else every card of the driver.

    Found without importing a framework: that alone would cost seconds and memory on each card.
    """
    variables = os.environ if environment is None else environment
    chosen = variables.get(VISIBLE_VARIABLE)
    if chosen is not None:
        return _listed(chosen)
    try:
        return [str(index) for index in range(len(os.listdir(driver_folder)))]
    except OSError:
        return []


def usable_gpus(declared: float) -> list[str]:
    """As many ids as were declared: of the cards that can be seen, or numbers where none can."""
    return (visible_gpus() or [str(number) for number in range(int(declared))])[: int(declared)]


def _listed(chosen: str) -> list[str]:
    """As CUDA reads it: the first entry that is no device ends the list."""
    ids: list[str] = []
    for entry in chosen.split(","):
        device = entry.strip()
        if not device or device.startswith("-") or device == "NoDevFiles":
            break
        ids.append(device)
    return ids


def assign_gpus(num_workers: int, gpus_per_worker: float, visible: Sequence[str]) -> list[list[str]]:
    """The device ids of each worker. Fractions share a card: 0.5 puts two workers on each."""
    if gpus_per_worker <= 0:
        return [[] for _ in range(num_workers)]
    if gpus_per_worker < 1:
        per_card = int(1 / gpus_per_worker + 1e-9)
        needed = -(-num_workers // per_card)
        _check(needed, num_workers, gpus_per_worker, visible)
        return [[visible[rank // per_card]] for rank in range(num_workers)]
    if gpus_per_worker != int(gpus_per_worker):
        raise ConfigError(f"{gpus_per_worker} GPUs per worker: above one, it must be a whole number")
    each = int(gpus_per_worker)
    _check(num_workers * each, num_workers, gpus_per_worker, visible)
    return [list(visible[rank * each : (rank + 1) * each]) for rank in range(num_workers)]


def _check(needed: int, num_workers: int, gpus_per_worker: float, visible: Sequence[str]) -> None:
    if needed > len(visible):
        raise ConfigError(
            f"{num_workers} workers with {gpus_per_worker:g} GPU(s) each need {needed} GPU(s), "
            f"but {len(visible)} can be seen here. Use fewer workers, fewer GPUs per worker, "
            f"or use_gpu=False; {VISIBLE_VARIABLE} limits which are seen."
        )
