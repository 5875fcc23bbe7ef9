"""The saving half of sharded checkpoints: which rank writes what, and where it is in whose file."""

from __future__ import annotations

import contextlib
import io
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from paceline.air.errors import CheckpointError
from paceline.train.model_checkpoint import ModelSource
from paceline.train.torch.sharded_files import (
    METADATA_FILE,
    Entry,
    encode_metadata,
    flat_bytes,
    frame_of,
    is_plain,
    part_file,
    place,
    saved_bytes,
)

if TYPE_CHECKING:
    from paceline.air.packing import FileSink

_ALIGNMENT = 64


@dataclass(frozen=True, kw_only=True)
class ShardedPart(ModelSource):
    """One rank's part of a sharded checkpoint: a view of the model, or of a snapshot. Written when it is reported."""

    entries: tuple[Entry, ...]
    part: int
    small_files: tuple[tuple[str, bytes], ...] = ()
    """What the first rank writes for all."""

    def describe(self) -> str:
        return f"part {self.part} of a sharded checkpoint"

    memory: mmap.mmap | None = None
    """Of a snapshot."""

    def write_files(self, sink: FileSink, move: bool = False) -> None:
        with sink.open(part_file(self.part)) as file:
            for entry in self.entries:
                entry.write(file)
        for name, content in self.small_files:
            with sink.open(name) as file:
                file.write(content)
        if move and self.memory is not None:
            _give_back(self.memory)

    def snapshot(self) -> ShardedPart:
        """A copy in main memory."""
        sizes = [0 if entry.tensor is None else entry.tensor.nbytes for entry in self.entries]
        steps = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        memory = _take_memory(sum(steps))
        begin, entries = 0, []
        for entry, size, step in zip(self.entries, sizes, steps, strict=True):
            if entry.tensor is None:
                entries.append(entry)
                continue
            copy = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=begin)
            copy.copy_(flat_bytes(entry.tensor))
            entries.append(Entry(entry.before, copy, entry.after))
            begin += step
        return ShardedPart(part=self.part, entries=tuple(entries), small_files=self.small_files, memory=memory)

    def load_dict(self) -> dict[str, Any]:
        raise CheckpointError(f"This is {self.describe()}. Report it, then read the committed checkpoint.")


_spare: list[mmap.mmap] = []
"""The memory of the last snapshot that was written. The next one has no page faults in it, which are most of the time
that a snapshot takes."""


def _take_memory(size: int) -> mmap.mmap:
    with contextlib.suppress(IndexError):  # another thread may take it
        memory = _spare.pop()
        if len(memory) == max(size, 1):
            return memory
    return mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _give_back(memory: mmap.mmap) -> None:
    _spare[:] = [memory]


def plan_part(state: dict[str, Any], rank: int, world_size: int, extra_files: dict[str, bytes]) -> ShardedPart:
    """What this rank has to write of a state dict; every rank calls this."""
    planner = DefaultSavePlanner()
    own: Callable[[], _Own] = lambda: _own_plan(planner, state, is_first=rank == 0)  # noqa: E731
    together: Callable[[list[_Own]], list[_Share]] = lambda plans: _share_out(planner, plans)  # noqa: E731
    own_plan, share = _agree(own, together, rank, world_size)
    planner.finish_plan(SavePlan(share.items))
    entries = tuple(own_plan.ready.get(item.index) or _entry(planner, item) for item in share.items)
    small_files = {METADATA_FILE: share.metadata, **extra_files} if rank == 0 else {}
    return ShardedPart(part=rank, entries=entries, small_files=tuple(small_files.items()))


@dataclass
class _Own:
    """What one rank has. Rank 0 knows the length of plain tensors; that of anything else is `lengths`."""

    plan: SavePlan
    lengths: dict[MetadataIndex, int]
    ready: dict[MetadataIndex, Entry]
    """What had to be encoded to know its length; it stays on its rank."""

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "lengths": self.lengths, "ready": {}}


@dataclass
class _Share:
    """What one rank has to write, in order."""

    items: list[WriteItem]
    metadata: bytes = b""
    """On rank 0: the content of `.metadata`."""


def _own_plan(planner: DefaultSavePlanner, state: dict[str, Any], *, is_first: bool) -> _Own:
    planner.set_up_planner(state, is_coordinator=is_first)
    own = _Own(planner.create_local_plan(), {}, {})
    for item in own.plan.items:
        value = planner.resolve_data(item)
        if isinstance(value, io.BytesIO):
            content = value.getvalue()
        elif not is_plain(value.detach()):
            content = saved_bytes(value.detach().cpu())
        else:
            continue
        own.ready[item.index] = Entry(content)
        own.lengths[item.index] = len(content)
    return own


def _share_out(planner: DefaultSavePlanner, plans: list[_Own]) -> list[_Share]:
    """On rank 0: what several ranks have is written by one of them, and everything gets its place."""
    _refuse_differences(plans)
    chosen, metadata = planner.create_global_plan([own.plan for own in plans])
    places = {}
    for rank, (plan, own) in enumerate(zip(chosen, plans, strict=True)):
        offset = 0
        for item in plan.items:
            length = own.lengths.get(item.index) or _length(item)
            places[item.index] = place(rank, offset, length)
            offset += length
    shares = [_Share(plan.items) for plan in chosen]
    shares[0].metadata = encode_metadata(metadata, places)
    return shares


def _refuse_differences(plans: list[_Own]) -> None:
    """What has the same name on two ranks is the same tensor, or two parts of it."""
    first: dict[str, tuple[int, list[int], torch.dtype]] = {}
    for rank, own in enumerate(plans):
        for item in own.plan.items:
            if item.tensor_data is None:
                continue
            size, dtype = list(item.tensor_data.size), item.tensor_data.properties.dtype
            other, other_size, other_dtype = first.setdefault(item.index.fqn, (rank, size, dtype))
            if (size, dtype) != (other_size, other_dtype):
                raise CheckpointError(
                    f"{item.index.fqn} is {other_size} of {other_dtype} on rank {other}, and {size} of {dtype} on rank "
                    f"{rank}. Every rank must save the same model."
                )


def _length(item: WriteItem) -> int:
    assert item.tensor_data is not None
    shape = item.tensor_data.chunk.sizes
    return frame_of(tuple(shape), item.tensor_data.properties.dtype).length


def _entry(planner: DefaultSavePlanner, item: WriteItem) -> Entry:
    tensor = planner.resolve_data(item)
    assert isinstance(tensor, torch.Tensor)
    assert item.tensor_data is not None
    assert item.type is not WriteItemType.BYTE_IO
    tensor = tensor.detach()
    planned = tuple(item.tensor_data.chunk.sizes)
    if tuple(tensor.shape) != planned:
        raise CheckpointError(
            f"{item.index.fqn} has the shape {tuple(tensor.shape)}, and {planned} by its description."
        )
    frame = frame_of(tuple(tensor.shape), tensor.dtype)
    return Entry(frame.before, tensor if frame.memory else None, frame.after)


def _agree(
    own: Callable[[], _Own], together: Callable[[list[_Own]], list[_Share]], rank: int, world_size: int
) -> tuple[_Own, _Share]:
    """Rank 0 gets what all ranks have, and each rank its share. What goes wrong on one of them is raised on all."""
    mine: _Own | CheckpointError
    try:
        mine = own()
    except Exception as error:
        if world_size == 1:
            raise
        mine = CheckpointError(f"rank {rank} cannot save its part: {type(error).__name__}: {error}")
    everyone = _gathered(mine, rank, world_size)
    shares: Sequence[_Share | CheckpointError] = []
    if rank == 0:
        shares = _shares_or_errors(everyone, together)
    share = _scattered(shares, rank, world_size)
    if isinstance(share, CheckpointError):
        raise share
    assert isinstance(mine, _Own)
    return mine, share


def _shares_or_errors(
    everyone: list[Any], together: Callable[[list[_Own]], list[_Share]]
) -> Sequence[_Share | CheckpointError]:
    problem = next((found for found in everyone if isinstance(found, CheckpointError)), None)
    if problem is None:
        try:
            return together(everyone)
        except CheckpointError as error:
            problem = error
        except Exception as error:
            problem = CheckpointError(f"the ranks' parts do not fit together: {type(error).__name__}: {error}")
    return [problem] * len(everyone)


def _gathered(mine: Any, rank: int, world_size: int) -> list[Any]:
    if world_size == 1:
        return [mine]
    everyone: list[Any] = [None] * world_size if rank == 0 else []
    dist.gather_object(mine, everyone if rank == 0 else None, dst=0)
    return everyone


def _scattered(shares: Sequence[Any], rank: int, world_size: int) -> Any:
    if world_size == 1:
        return shares[0]
    received: list[Any] = [None]
    dist.scatter_object_list(received, list(shares) if rank == 0 else None, src=0)
    return received[0]
