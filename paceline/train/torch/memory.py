"""What training a model needs in memory, on each rank: an estimate that needs neither workers nor data.

Torch is imported only inside the functions, as in `loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.air.errors import ConfigError
from paceline.air.words import bytes_of, counted, size_text

if TYPE_CHECKING:
    import torch

STRATEGIES = ("ddp", "fsdp2")
MOST_WORKERS = 1 << 20
DOUBLINGS = 10
"""A search for a number of workers that suffices ends there. Much further, shards are mostly padding."""


@dataclass(frozen=True)
class RankMemory:
    """What one rank holds at the fullest moment of a step, in bytes, without activations.

    Shards differ by a row of each parameter: these are the figures of rank 0, whose shards are the largest.
    """

    strategy: str
    """"ddp" or "fsdp2". With one worker, DDP does not wrap the model, and FSDP2 does."""
    world_size: int
    parameters: int
    buffers: int
    gradients: int
    optimizer: int
    working: int
    """DDP's buckets and autocast's copies of weights; or the layers that FSDP2 gathers, with their gradients."""
    memory: int | None = None
    """What a worker has; None if that is not known."""

    @property
    def total(self) -> int:
        return self.parameters + self.buffers + self.gradients + self.optimizer + self.working

    @property
    def headroom(self) -> int | None:
        """What is left for activations, negative if the model does not fit."""
        return None if self.memory is None else self.memory - self.total

    @property
    def fits(self) -> bool | None:
        return None if self.headroom is None else self.headroom > 0


@dataclass(frozen=True)
class MemoryEstimate:
    """What training a model needs on each rank, for DDP and FSDP2 at several world sizes."""

    model: str
    """The name of its class."""
    optimizer: str
    parameters: int
    """How many numbers: shared parameters count once."""
    trainable: int
    ranks: tuple[RankMemory, ...]
    advice: str
    """One or two sentences."""
    notes: tuple[str, ...] = ()
    """What limits the estimate."""

    def of(self, strategy: str, world_size: int) -> RankMemory:
        """The estimate for one rank of so many."""
        for rank in self.ranks:
            if (rank.strategy, rank.world_size) == (strategy, world_size):
                return rank
        raise KeyError(f"{strategy} with {counted(world_size, 'worker')} is not part of this estimate")


def estimate_memory(
    model: torch.nn.Module,
    optimizer: str | torch.optim.Optimizer | Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] = "adamw",
    *,
    world_sizes: Sequence[int] = (1, 2, 4, 8),
    memory: int | str | None = None,
    dtype: str | torch.dtype | None = None,
    mixed_precision: str | torch.dtype | None = None,
    layers: str | Sequence[str] | None = "auto",
    gradient_as_bucket_view: bool = False,
) -> MemoryEstimate:
    """Estimate parameters, gradients, optimizer state and communication buffers of each rank.

    Nothing is computed and no memory is taken: a model of any size can be built under
    `torch.device("meta")`. What is left of `memory` is for activations, which depend on the batch
    and on the code of `forward`.

    Args:
        model: On any device. Shared parameters count once, and frozen ones have no gradients.
        optimizer: The name of a class of `torch.optim` in any case, "sgd-momentum", an optimizer
            of the model's parameters, or a function that makes one from a list of parameters.
        world_sizes: Numbers of workers.
        memory: What one worker has, in bytes or like "24GiB". By default the memory of its GPU, or an
            equal part of this machine's memory if there is no GPU.
        dtype: As with `model.to(dtype)`, such as "bf16"; by default as the model was built.
        mixed_precision: "bf16" or "fp16": autocast with DDP; with FSDP2
            `MixedPrecisionPolicy(param_dtype=..., reduce_dtype=torch.float32)`.
        layers: What FSDP2 gathers at a time: "auto" for the members of each ModuleList, or of the outermost
            Sequential if there is no list; names of classes; or None for the whole model.
        gradient_as_bucket_view: As with `DistributedDataParallel`: gradients live in its buckets.
    """
    from paceline.train.torch import memory_parts as parts

    sizes = _checked_sizes(world_sizes)
    given = bytes_of(memory) if isinstance(memory, str) else memory
    if memory is not None and (given is None or given <= 0):
        raise ConfigError(f"memory={memory!r}: give a positive number of bytes, or a size like '24GiB'.")
    content = parts.ModelContent(model, parts.dtype_of("dtype", dtype), layers)
    states = parts.optimizer_states(content, optimizer)
    cast = parts.dtype_of("mixed_precision", mixed_precision)

    def rank(strategy: str, world_size: int, in_buckets: bool = gradient_as_bucket_view) -> RankMemory:
        if strategy == "fsdp2":
            found = parts.sharded(content, states, world_size, cast)
        else:
            found = parts.replicated(content, states, world_size, cast, in_buckets)
        available = given if given is not None else parts.default_memory(world_size)
        return replace(found, strategy=strategy, memory=available)

    ranks = tuple(rank(strategy, size) for strategy in STRATEGIES for size in sizes)
    advice = _advice(ranks, rank, is_fixed=given is not None or parts.has_gpus())
    slimmest = rank("ddp", sizes[-1], in_buckets=True)
    if slimmest.fits and not rank("ddp", sizes[-1]).fits:
        advice += f" With gradient_as_bucket_view=True ddp needs {size_text(slimmest.total)}, which fits too."
    return MemoryEstimate(
        model=type(model).__name__,
        optimizer=states.name,
        parameters=sum(tensor.numel() for tensor in content.parameters),
        trainable=sum(tensor.numel() for tensor in content.parameters if tensor.requires_grad),
        ranks=ranks,
        advice=advice,
        notes=(*content.notes, *states.notes),
    )


def _checked_sizes(world_sizes: Sequence[int]) -> list[int]:
    sizes = sorted(set(world_sizes))
    if not sizes or sizes[0] < 1 or sizes[-1] > MOST_WORKERS:
        raise ConfigError(f"world_sizes={list(world_sizes)}: give numbers of workers from 1 to {MOST_WORKERS:,}.")
    return sizes


def _advice(ranks: tuple[RankMemory, ...], rank: Callable[[str, int], RankMemory], is_fixed: bool) -> str:
    """What to choose. `is_fixed`: a worker has the same memory however many there are."""
    replicated = [each for each in ranks if each.strategy == "ddp"]
    sharded = [each for each in ranks if each.strategy == "fsdp2"]
    largest, smallest = replicated[-1], sharded[-1]
    needs = f"ddp needs {size_text(largest.total)} per worker"
    if largest.memory is None:
        return f"{needs}, fsdp2 {size_text(smallest.total)} with {_workers(smallest)}."
    if largest.fits:
        more = "" if smallest.world_size == 1 else f", fsdp2 {size_text(smallest.headroom or 0)}"
        return f"Fits with ddp: with {_workers(largest)} it leaves {_left(largest)} for activations{more}."
    if fitting := [each for each in replicated if each.fits]:
        also = [each for each in sharded if each.fits and each.world_size > fitting[-1].world_size]
        more = f"; fsdp2 fits up to {_workers(also[-1])}" if also else ""
        return f"Fits with ddp up to {_workers(fitting[-1])}, which leaves {_left(fitting[-1])} for activations{more}."
    if fitting := [each for each in sharded if each.fits]:
        return (
            f"Fits with fsdp2 from {_workers(fitting[0])}, which leaves {_left(fitting[0])} for activations; {needs}."
        )
    has = f"a worker has {size_text(smallest.memory or 0)}"
    if not is_fixed:
        return (
            f"Does not fit this machine: fsdp2 needs {size_text(smallest.total)} per worker with {_workers(smallest)}, "
            f"and {has}."
        )
    more_workers = [rank("fsdp2", smallest.world_size << doublings) for doublings in range(DOUBLINGS)]
    enough = next((each for each in more_workers if each.fits), None)
    if enough is not None:
        return f"Fits with fsdp2 and {_workers(enough)}, more than asked for: {needs}, and {has}."
    least = min(more_workers, key=lambda each: each.total)
    return (
        f"Does not fit with more workers either: {has}, and fsdp2 needs {size_text(least.total)} with "
        f"{_workers(least)}, of which {size_text(least.working)} are for the layers gathered at a time."
    )


def _workers(rank: RankMemory) -> str:
    return counted(rank.world_size, "worker")


def _left(rank: RankMemory) -> str:
    return f"{size_text(rank.headroom or 0)} per worker"
