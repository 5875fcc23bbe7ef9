"""A DataLoader that tells the session for how long the training loop waits for its batches."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from torch.utils.data import DataLoader

from paceline.air.timing import BatchClock

_CLOCK = "_paceline_clock"


def timed(loader: DataLoader[Any], clock: BatchClock) -> DataLoader[Any]:
    """A copy of the loader, with everything that its class has."""
    changed = copy.copy(loader)
    changed.__dict__.update({_CLOCK: clock, "_iterator": None})  # its processes, if it keeps any, are its own
    kind: Any = type(loader)
    changed.__class__ = _timed_class(kind)
    return changed


@functools.cache
def _timed_class(kind: type[DataLoader[Any]]) -> type[DataLoader[Any]]:
    """`kind`, with batches that are timed; known by the same name."""

    def batches(self: DataLoader[Any]) -> Iterator[Any]:
        return TimedBatches(kind.__iter__(self), self.__dict__[_CLOCK])

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**names, "__iter__": batches})


class TimedBatches:
    """The batches of one pass; all else is asked of the iterator inside."""

    def __init__(self, batches: Iterator[Any], clock: BatchClock) -> None:
        self._batches = batches
        self._clock = clock

    def __iter__(self) -> TimedBatches:
        return self

    def __next__(self) -> Any:
        asked = perf_counter()
        batch = next(self._batches)
        self._clock.took_batch(asked, perf_counter())
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)
