"""The sharded training that both sides do, and saves in turn with those of torch.distributed.checkpoint."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks import workload

WIDTH, LAYERS = 1024, 8
"""8 million parameters."""
BATCH = 64
STEPS_PER_WINDOW = 10
SAVED_BYTES = 10**9


def blocks(width: int = WIDTH, layers: int = LAYERS) -> Any:
    from torch import nn

    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)))


def shard(model: Any) -> Any:
    """What a careful user of PyTorch writes: each block, then the rest."""
    from torch.distributed.fsdp import fully_shard

    for block in model:
        fully_shard(block)
    return fully_shard(model)


def steps_per_second(model: Any, windows: int) -> float:
    """The median of windows of steps, after a warm-up."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(BATCH, WIDTH)
    seconds = []
    for _ in range(windows + 1):
        dist.barrier()
        started = time.perf_counter()
        for _ in range(STEPS_PER_WINDOW):
            optimizer.zero_grad()
            model(inputs).pow(2).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        dist.barrier()
        seconds.append(time.perf_counter() - started)
    return STEPS_PER_WINDOW / statistics.median(seconds[1:])


def large_model_and_optimizer(shard_it: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Whose weights and moments are SAVED_BYTES together, after one step."""
    import torch

    width = 2048
    model = shard_it(blocks(width, round(SAVED_BYTES / (3 * 4 * width * (width + 1)))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model(torch.randn(2, width)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def save_in_turn(
    model: Any, optimizer: Any, ours: Callable[[int], Callable[[], None]], repeats: int, *, in_background: bool
) -> dict[str, list[float]]:
    """Seconds that the slowest rank stands still. `ours` saves, and returns what waits until nothing is under way."""
    figures: dict[str, list[float]] = {"ours": [], "dcp": []}
    order = (("ours", ours), ("dcp", _Dcp(model, optimizer, in_background)))
    for number in range(repeats + 1):
        for name, save in order if number % 2 else reversed(order):
            seconds = _slowest(save, number)
            if number:  # the first of each warms up
                figures[name].append(seconds)
    return figures


def _slowest(save: Callable[[int], Callable[[], None]], number: int) -> float:
    import torch
    import torch.distributed as dist

    os.sync()  # neither side pays for what the other left to be written
    dist.barrier()
    started = time.perf_counter()
    finish = save(number)
    seconds = torch.tensor(time.perf_counter() - started)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    finish()
    dist.barrier()
    return float(seconds)


class _Dcp:
    """torch.distributed.checkpoint alone, synced to disk as is its default."""

    def __init__(self, model: Any, optimizer: Any, in_background: bool) -> None:
        import torch.distributed as dist

        # Its background thread must not meet in the group of the training: both would wait forever.
        self._group = dist.new_group(backend="gloo")
        self._model = model
        self._optimizer = optimizer
        self._in_background = in_background

    def __call__(self, number: int) -> Callable[[], None]:
        import torch.distributed as dist
        from torch.distributed.checkpoint.state_dict import get_state_dict
        from torch.distributed.checkpoint.state_dict_saver import async_save, save

        weights, state = get_state_dict(self._model, self._optimizer)
        place = workload.place() / f"dcp-{number}"
        future: Any = None
        if self._in_background:
            state_dict = {"model": weights, "optimizer": state}
            future = async_save(state_dict, checkpoint_id=place, process_group=self._group)
        else:
            save({"model": weights, "optimizer": state}, checkpoint_id=place)

        def finish() -> None:
            if future is not None:
                future.result()
            dist.barrier()
            if dist.get_rank() == 0:
                shutil.rmtree(place)

        return finish
