"""What iter_batches gives: an object of which every iteration is a pass over the rows."""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from paceline.air.errors import ConfigError
from paceline.data.iteration.background import Background
from paceline.data.iteration.batching import runs

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.iteration.batches import Batches
    from paceline.data.iteration.options import BatchOptions
    from paceline.data.iteration.stats import IterationStats

B = TypeVar("B")


class Epoch(ABC):
    """One pass over the rows: made by iter(), ended when it is exhausted or left."""

    fresh: bool = False
    """Its chunks are nobody else's memory."""
    stats: IterationStats

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """The rows in their final order."""

    def yielded(self, rows: int) -> None:  # noqa: B027  # most passes need not know
        """The user's code has been given that many more rows."""

    @abstractmethod
    def end(self) -> None:
        """No more rows will be taken."""


Cutter = Callable[["Chunk", int, bool], Iterator[B]]
"""(chunk of n x batch rows, batch rows, copy) -> its batches"""


class BatchIterable(Generic[B]):
    """Every iter() is a new pass: `for epoch in ...: for batch in batches: ...` works with one of these.

    next() works too, on a pass of its own.
    """

    def __init__(
        self,
        owner: Batches,
        options: BatchOptions,
        cut: Cutter[B],
        in_background: bool = False,
    ) -> None:
        self.owner = owner
        """What these are batches of: a dataset, or a worker's part of one."""
        self.options = options
        self._cut = cut
        self._in_background = in_background and options.prefetch_batches > 0
        self._own: Iterator[B] | None = None
        self._newest: weakref.ref[Generator[B, None, None]] | None = None
        """The pass that was begun last; it is the caller's, and ends when they let go of it."""

    def __iter__(self) -> Iterator[B]:
        if self._own is not None:  # what next() has begun is gone on with
            own, self._own = self._own, None
            return own
        return self._new_pass()

    def __next__(self) -> B:
        if self._own is None:
            self._own = self._new_pass()
        return next(self._own)

    def end_pass(self) -> None:
        """End the pass that was begun last, as leaving its loop does; for loops that keep hold of it."""
        newest = self._newest() if self._newest is not None else None
        if newest is not None:
            newest.close()
        self._own = None

    @property
    def rows(self) -> int | None:
        """Of a whole pass, where their number is known without reading."""
        return self.owner._rows_per_pass()

    def __len__(self) -> int:
        """Batches of a whole pass, where the number of rows is known without reading."""
        rows, size = self.rows, self.options.batch_size
        if rows is None or size is None:
            raise TypeError("the number of batches is not known before they have been read")
        return rows // size if self.options.drop_last else -(-rows // size)

    def __getitems__(self, numbers: list[int]) -> NoReturn:
        """What a DataLoader of torch asks for first: it takes everything that has a length for a list of rows."""
        raise ConfigError(
            "A DataLoader asks for rows by number, and iter_torch_batches() gives complete batches: iterate over them "
            "without a DataLoader. If they are a dataset of a transformers.Trainer, call prepare_trainer(trainer) of "
            "paceline.train.huggingface.transformers before trainer.train()."
        )

    def _new_pass(self) -> Iterator[B]:
        begun = self._pass()
        self._newest = weakref.ref(begun)
        return begun

    def _pass(self) -> Generator[B, None, None]:
        epoch = self.owner._begin(self.options)
        stats = epoch.stats
        began = time.perf_counter()
        sized = self._sized_batches(epoch)
        batches = Background(sized, self.options.prefetch_batches) if self._in_background else sized
        try:
            asked = began
            for batch, rows in batches:
                given = time.perf_counter()
                if stats.first_batch_s is None:
                    stats.first_batch_s = given - began
                stats.convert_s += given - asked
                stats.batches += 1
                stats.rows += rows
                epoch.yielded(rows)
                yield batch
                asked = time.perf_counter()
                stats.user_s += asked - given
        finally:
            if isinstance(batches, Background):
                batches.close()
            epoch.end()
            stats.total_s = time.perf_counter() - began
            stats.convert_s = max(0.0, stats.convert_s - stats.read_wait_s)

    def _sized_batches(self, epoch: Epoch) -> Iterator[tuple[B, int]]:
        size = self.options.batch_size
        if size is None:
            for chunk in epoch.chunks():
                for batch in self._cut(chunk, chunk.num_rows, not epoch.fresh):
                    yield batch, chunk.num_rows
            return
        for run in runs(epoch.chunks(), size, self.options.drop_last):
            left = run.num_rows
            for batch in self._cut(run, size, not epoch.fresh):
                yield batch, min(size, left)
                left -= size
