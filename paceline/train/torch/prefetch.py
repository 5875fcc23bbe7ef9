"""Copy the next batch to the GPU while the train loop computes on the present one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from paceline.train.torch.devices import move_to


def prefetch_to_gpu(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """The batches on `device`, each copied on a stream of its own one step ahead.

    Only batches in pinned memory are really copied in the background
    (`DataLoader(pin_memory=True)`).
    """
    copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    ahead = _copy(next(batches, _END), device, copying)
    while ahead is not _END:
        computing = torch.cuda.current_stream(device)
        computing.wait_stream(copying)
        batch = ahead
        _mark_in_use(batch, computing)
        ahead = _copy(next(batches, _END), device, copying)
        yield batch


_END = object()


def _copy(batch: Any, device: torch.device, stream: torch.cuda.Stream) -> Any:
    if batch is _END:
        return _END
    with torch.cuda.stream(stream):
        return move_to(batch, device)


def _mark_in_use(batch: Any, stream: torch.cuda.Stream) -> None:
    """Tell the allocator who uses the tensors: their memory must not be given to the next copy before that is done."""
    if isinstance(batch, torch.Tensor):
        batch.record_stream(stream)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _mark_in_use(value, stream)
    elif isinstance(batch, list | tuple):
        for value in batch:
            _mark_in_use(value, stream)
