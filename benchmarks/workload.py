"""The training that every side does: the same model, the same data, the same steps."""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

LAYERS = (784, 1024, 1024, 128, 10)
"""2.0 million parameters."""
BATCH = 64
STEPS_PER_WINDOW = 30


def place() -> Path:
    """The directory that a script and the harness share."""
    return Path(os.environ["BENCH_PLACE"])


def write_out(data: dict[str, Any]) -> None:
    """Hand the script's figures to the harness."""
    Path(os.environ["BENCH_OUT"]).write_text(json.dumps(data))


def small_model() -> nn.Module:
    from torch import nn

    return nn.Linear(8, 1)


def mlp() -> nn.Module:
    from torch import nn

    layers: list[nn.Module] = []
    for width, following in itertools.pairwise(LAYERS):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def few_steps(model: nn.Module) -> float:
    """Three steps of a model that is already wrapped; returns the loss."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.ones(16, 8)
    loss = torch.zeros(())
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
    return float(loss)


def samples_per_second(model: nn.Module, windows: int) -> float:
    """Throughput over all ranks of a wrapped MLP, timed inside the loop after a warm-up.

    The median of windows of 30 steps: a moment in which the machine does something else does not count.
    """
    import torch
    import torch.distributed as dist

    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(BATCH, LAYERS[0])
    labels = torch.randint(LAYERS[-1], (BATCH,))
    lossf = torch.nn.CrossEntropyLoss()
    seconds = []
    for _ in range(windows + 1):
        dist.barrier()
        started = time.perf_counter()
        for _ in range(STEPS_PER_WINDOW):
            optimizer.zero_grad()
            lossf(model(inputs), labels).backward()
            optimizer.step()
        dist.barrier()
        seconds.append(time.perf_counter() - started)
    return STEPS_PER_WINDOW * BATCH * dist.get_world_size() / statistics.median(seconds[1:])


def kill_one_rank_once(rank: int, round_number: int, first_line: float) -> None:
    """First attempt: rank 1 stamps the time and kills itself. Next attempt: every rank leaves its stamp.

    `first_line` is when the user's code began. The stamps are CLOCK_MONOTONIC, which all processes share.
    """
    import torch
    import torch.distributed as dist

    killed = place() / f"{round_number}-killed"
    if killed.exists():
        (place() / f"{round_number}-again-{rank}").write_text(str(first_line))
        return
    dist.barrier()
    if rank == 1:
        killed.write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def idle(rank: int, strays: bool = False) -> None:
    """Say that this worker is up, then wait until the harness has seen enough."""
    if strays:
        start_strays()
    ready = place() / f"ready-{rank}"
    ready.with_suffix(".new").write_text(str(os.getpid()))
    ready.with_suffix(".new").rename(ready)
    while not (place() / "release").exists():
        time.sleep(0.05)


def start_strays() -> None:
    """Children that try to get away: a session of their own, a double fork, ignored signals."""
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.Popen(["sh", "-c", "trap '' TERM HUP INT; sleep 1000 & wait; sleep 1000"])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "1000"])
        os._exit(0)
    os.wait()


CHECKPOINT_FILES = 4
CHECKPOINT_BYTES = 200 * 10**6


def write_checkpoint(target: Path) -> Path:
    """A directory of 200 MB, written and settled on disk."""
    target.mkdir()
    for number in range(CHECKPOINT_FILES):
        (target / f"shard-{number}.bin").write_bytes(os.urandom(CHECKPOINT_BYTES // CHECKPOINT_FILES))
    os.sync()
    return target


def copy_and_sync(source: Path, target: Path) -> float:
    """Seconds for `cp -r` and fsync of every file and directory: what a careful user would write."""
    started = time.perf_counter()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    for path in [*target.iterdir(), target, target.parent]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return time.perf_counter() - started
