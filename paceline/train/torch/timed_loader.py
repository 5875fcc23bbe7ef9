"""A DataLoader that tells the session for how long the training loop waits for its batches, and in which pass it is."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from paceline.air.timing import BatchClock

if TYPE_CHECKING:
    from paceline.train.torch.data_loader import EpochSampler

_CLOCK = "_paceline_clock"
_PASSES = "_paceline_passes"


class Passes:
    """Counts the passes over one loader, so that a run that continues begins with the right one.

    A pass is over when its last batch was handed out, or when the loop has let go of its iterator. A pass that is not
    over is the one to repeat: where the loop continues within an epoch, it skips batches of that epoch.
    """

    def __init__(self, first: int, sampler: EpochSampler | None) -> None:
        self._next = first
        self._sampler = sampler
        self._latest: weakref.ref[TimedBatches] | None = None
        if sampler is not None and first:
            sampler.set_epoch(first)

    def begin(self) -> None:
        """The loop asks for an iterator. Its sampler may have been set to another epoch, which wins."""
        self._next = (self._next if self._sampler is None else self._sampler.epoch) + 1

    def under_way(self, batches: TimedBatches) -> TimedBatches:
        self._latest = weakref.ref(batches)
        return batches

    def epoch(self) -> int:
        """The epoch that a run continued from here begins with."""
        latest = None if self._latest is None else self._latest()
        return self._next - 1 if latest is not None and not latest.is_over else self._next


def timed(loader: DataLoader[Any], clock: BatchClock, passes: Passes) -> DataLoader[Any]:
    """A copy of the loader, with everything that its class has."""
    changed = copy.copy(loader)
    # Its processes, if it keeps any, are its own.
    changed.__dict__.update({_CLOCK: clock, _PASSES: passes, "_iterator": None})
    kind: Any = type(loader)
    changed.__class__ = _timed_class(kind)
    return changed


@functools.cache
def _timed_class(kind: type[DataLoader[Any]]) -> type[DataLoader[Any]]:
    """`kind`, with batches that are timed; known by the same name."""

    def batches(self: DataLoader[Any]) -> Iterator[Any]:
        passes: Passes = self.__dict__[_PASSES]
        passes.begin()
        return passes.under_way(TimedBatches(kind.__iter__(self), self.__dict__[_CLOCK], _length(self)))

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**names, "__iter__": batches})


class TimedBatches:
    """The batches of one pass; all else is asked of the iterator inside."""

    def __init__(self, batches: Iterator[Any], clock: BatchClock, length: int | None) -> None:
        self._batches = batches
        self._clock = clock
        self._left = length

    @property
    def is_over(self) -> bool:
        """All batches were handed out."""
        return self._left == 0

    def __iter__(self) -> TimedBatches:
        return self

    def __next__(self) -> Any:
        asked = perf_counter()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._left = 0
            raise
        if self._left is not None:
            self._left -= 1
        self._clock.took_batch(asked, perf_counter())
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _length(loader: DataLoader[Any]) -> int | None:
    """In batches; None if the loader does not know."""
    try:
        return len(loader)
    except TypeError:
        return None
