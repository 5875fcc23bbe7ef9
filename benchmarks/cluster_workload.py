"""What both sides do on a cluster of three nodes: as many workers, on the same resources, with the same functions.

The nodes' clocks differ. What is timed across nodes is timed by the modification times of files in the directory that
all of them share: those are the machine's own.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

NODES = 3
CPUS_PER_NODE = 4
WORKERS = 3
RESOURCES = {"CPU": 2.0}
"""Of each worker: with one node less there is still room for all of them."""
STRATEGY = "SPREAD"
TRIALS_AT_ONCE = 6
TRIAL_RESOURCES = {"CPU": 2.0}
HEARTBEAT_S = 5.0
"""After such a time without a sign of life, a host is taken for dead."""
ADDRESS_VARIABLE = "BENCH_RAY_ADDRESS"


def address() -> str:
    """Of the cluster that is measured."""
    return os.environ[ADDRESS_VARIABLE]


def stamp(place: Path, name: str) -> None:
    (place / name).touch()


def was_stamped(place: Path, name: str) -> bool:
    return (place / name).exists()


def wait_for_stamp(place: Path, name: str) -> None:
    while not was_stamped(place, name):
        time.sleep(0.05)


def kill_one_rank_once(rank: int, place: Path, round_number: int) -> None:
    """First attempt: rank 1 stamps and kills itself. Next attempt: every rank stamps."""
    import torch
    import torch.distributed as dist

    if was_stamped(place, f"{round_number}-killed"):
        stamp(place, f"{round_number}-again-{rank}")
        return
    dist.barrier()
    if rank == 1:
        stamp(place, f"{round_number}-killed")
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def work_until_a_host_is_killed(rank: int, place: Path) -> None:
    """First attempt: all ranks work until the harness has killed a host. Next attempt: every rank stamps."""
    import torch
    import torch.distributed as dist

    if was_stamped(place, "killed"):
        stamp(place, f"again-{rank}")
        return
    dist.barrier()
    stamp(place, f"ready-{rank}")
    while True:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.05)


def idle(rank: int, place: Path) -> None:
    """Say that this worker is up, then wait until the harness has seen enough."""
    stamp(place, f"ready-{rank}")
    wait_for_stamp(place, "release")
