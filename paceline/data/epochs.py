"""What iter_batches gives: an object of which every iteration is a pass over the rows.

From top to bottom: the options of a pass and its times, the pass itself (`Epoch`, `BatchIterable`), cutting chunks into
batches (of one size, in windows of a local shuffle), and a pass over the pieces of a plan (`PlanEpoch`).
"""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from paceline.air.checks import whole_number
from paceline.air.errors import ConfigError
from paceline.air.resources import usable_cores
from paceline.air.words import counted
from paceline.data.block import ReadRequest, StageTimes
from paceline.data.execution import Background, Piece, ReadAhead, chunk_rows_for

if TYPE_CHECKING:
    import numpy as np

    from paceline.data.block import Chunk
    from paceline.data.dataset_batches import Batches
    from paceline.data.plan import Plan


DEFAULT_BATCH_ROWS = 256


@dataclass(frozen=True)
class BatchOptions:
    """How rows are cut into batches."""

    batch_size: int | None = DEFAULT_BATCH_ROWS
    """Rows of a batch; None: as they come."""
    prefetch_batches: int = 1
    """How many batches are read ahead; 0: nothing is read before it is asked for."""
    drop_last: bool = False
    window: int = 0
    """Rows of the local shuffle window; 0: no local shuffle."""
    window_seed: int | None = None
    most_rows: int | None = None
    """No more than these will be asked for: reading more at a time would be wasted."""
    read_ahead: bool = False
    """Whoever takes the batches takes them before they are used, nobody knows how many."""

    @classmethod
    def checked(
        cls,
        batch_size: Any,
        prefetch_batches: Any,
        drop_last: Any,
        local_shuffle_buffer_size: Any,
        local_shuffle_seed: Any,
        prefetch_blocks: Any = None,
    ) -> BatchOptions:
        """Options from the user's arguments, as plain numbers: some of them become part of stored positions.

        `prefetch_blocks` is the old spelling of `prefetch_batches`.
        """
        if batch_size is not None:
            batch_size = whole_number(batch_size, "batch_size", least=1)
        if prefetch_blocks is not None:
            prefetch_batches = prefetch_blocks
        prefetch_batches = whole_number(prefetch_batches, "prefetch_batches", least=0)
        window = 0
        if local_shuffle_buffer_size is not None:
            window = whole_number(local_shuffle_buffer_size, "local_shuffle_buffer_size", least=1)
            if batch_size is not None and window < batch_size:
                raise ConfigError(
                    f"local_shuffle_buffer_size is {window}, less than batch_size={batch_size}: "
                    "rows are shuffled within that buffer, so make it several times the batch."
                )
        if local_shuffle_seed is not None:
            local_shuffle_seed = whole_number(local_shuffle_seed, "local_shuffle_seed", least=0, most=2**63 - 1)
        return cls(batch_size, prefetch_batches, bool(drop_last), window, local_shuffle_seed)


@dataclass
class IterationStats:
    """Times of one pass over the data, in seconds of the thread that consumes it."""

    source: str = ""
    rows: int = 0
    batches: int = 0
    began: float = field(default_factory=time.perf_counter)
    total_s: float = 0.0
    read_wait_s: float = 0.0
    """Waiting for rows to be read and transformed."""
    convert_s: float = 0.0
    """Cutting and converting batches (reading them included where there is no reading ahead)."""
    user_s: float = 0.0
    """The consumer's own work between two batches."""
    first_batch_s: float | None = None
    stages: StageTimes = field(default_factory=StageTimes)
    """Reading and each operation, in seconds of the threads that read ahead."""
    notes: list[str] = field(default_factory=list)

    def to_string(self) -> str:
        """For people."""
        if not self.batches:
            return "\n".join([f"{self.source}: nothing has been iterated yet", *self.notes])
        total = self.total_s or time.perf_counter() - self.began
        rate = f", {self.rows / total:,.0f} rows/s" if total > 0 else ""
        lines = [
            f"{self.source}",
            f"  {counted(self.rows, 'row')} in {counted(self.batches, 'batch', 'batches')}, {total:.3f} s{rate}; "
            f"first batch after {self.first_batch_s or 0:.3f} s",
            f"  waiting for rows      {self.read_wait_s:9.3f} s  {_share(self.read_wait_s, total)}",
            f"  cutting, converting   {self.convert_s:9.3f} s  {_share(self.convert_s, total)}",
            f"  your code             {self.user_s:9.3f} s  {_share(self.user_s, total)}",
        ]
        if self.stages.seconds:
            lines.append("  meanwhile, in the reading threads:")
            lines += [f"    {stage:<32} {seconds:9.3f} s" for stage, seconds in self.stages.seconds.items()]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def _share(part: float, total: float) -> str:
    return f"{100 * part / total:5.1f} %" if total > 0 else ""


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
            "without a DataLoader."
        )

    def _new_pass(self) -> Iterator[B]:
        begun = self._pass()
        self._newest = weakref.ref(begun)
        return begun

    def _pass(self) -> Generator[B, None, None]:
        clock = None if self.options.read_ahead else self.owner.clock
        entered = time.perf_counter()
        epoch = self.owner._begin(self.options)
        stats = epoch.stats
        began = time.perf_counter()
        if clock is not None:
            clock.waited_for_data(began - entered)
        sized = self._sized_batches(epoch)
        batches = Background(sized, self.options.prefetch_batches) if self._in_background else sized
        try:
            with self.owner._joined() as starts_batch:
                asked = began
                for batch, rows in batches:
                    given = time.perf_counter()
                    if stats.first_batch_s is None:
                        stats.first_batch_s = given - began
                    stats.convert_s += given - asked
                    stats.batches += 1
                    stats.rows += rows
                    epoch.yielded(rows)
                    if clock is not None:
                        clock.took_batch(asked, given)
                    if starts_batch is not None:
                        starts_batch()
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


def runs(chunks: Iterable[Chunk], batch_rows: int, drop_last: bool) -> Iterator[Chunk]:
    """The same rows in pieces of n x batch_rows rows, ready to be cut into batches; the last one may be short.

    Chunks are passed on as they are wherever possible: rows are copied only where a
    batch straddles two chunks.
    """
    from paceline.data.formats import concat

    kept: list[Chunk] = []
    kept_rows = 0
    for chunk in chunks:
        start = 0
        if kept_rows:
            start = min(chunk.num_rows, batch_rows - kept_rows)
            kept.append(chunk.slice(0, start))
            kept_rows += start
            if kept_rows < batch_rows:
                continue
            yield concat(kept)
            kept, kept_rows = [], 0
        whole = (chunk.num_rows - start) // batch_rows * batch_rows
        if whole:
            yield chunk if whole == chunk.num_rows else chunk.slice(start, whole)
        if start + whole < chunk.num_rows:
            rest = chunk.slice(start + whole)
            kept, kept_rows = [rest], rest.num_rows
    if kept and not drop_last:
        yield concat(kept)


def shuffled_windows(
    chunks: Iterable[Chunk], window_rows: int, order: Callable[[int, int], np.ndarray], skip: int = 0
) -> Iterator[Chunk]:
    """Rows shuffled within consecutive windows of `window_rows`.

    `order(window, rows)` is the order of the rows of one window. The first `skip` rows of the first
    window's order are left out: a stream that is taken up again begins in the middle of a window, whose
    rows are all read once more.
    """
    for window, rows in enumerate(runs(_windows(chunks, window_rows), window_rows, drop_last=False)):
        indices = order(window, rows.num_rows)
        if window == 0 and skip:
            indices = indices[skip:]
        if len(indices):
            yield rows.take(_as_array(indices))


def _windows(chunks: Iterable[Chunk], window_rows: int) -> Iterator[Chunk]:
    """Chunks of which none is longer than a window, so that `runs` gives single windows."""
    filled = 0
    for chunk in chunks:
        start = 0
        while start < chunk.num_rows:
            rows = min(chunk.num_rows - start, window_rows - filled)
            yield chunk.slice(start, rows)
            start += rows
            filled = (filled + rows) % window_rows


def _as_array(indices: np.ndarray) -> object:
    import pyarrow as pa

    return pa.array(indices)


class PlanEpoch(Epoch):
    """Reads the pieces in order."""

    def __init__(
        self,
        plan: Plan,
        pieces: Sequence[Piece],
        options: BatchOptions,
        stats: IterationStats,
        *,
        columns: tuple[str, ...] | None = None,
        window_order: Callable[[int, int], np.ndarray] | None = None,
        window_skip: int = 0,
        threads: int | None = None,
    ) -> None:
        self.fresh = plan.fresh or window_order is not None  # a shuffled window is a copy
        self.stats = stats
        self._options = options
        self._window_order = window_order
        self._window_skip = window_skip
        rows = chunk_rows_for(plan, options.batch_size)
        if options.most_rows is not None:
            rows = max(1, min(rows, options.most_rows))
        if not plan.native:
            threads = 1  # users' functions are not called by several threads at once
        elif threads is None:
            threads = usable_cores()
        ahead = options.prefetch_batches * (options.batch_size or rows)
        self._reader = ReadAhead(
            plan,
            pieces,
            ReadRequest(columns=columns, chunk_rows=rows, times=stats.stages),
            threads=threads if options.prefetch_batches else 0,
            depth=max(1, min(64, ahead // rows)),
        )

    def chunks(self) -> Iterator[Chunk]:
        chunks: Iterator[Chunk] = iter(self._reader)
        if self._window_order is not None:
            chunks = shuffled_windows(chunks, self._options.window, self._window_order, self._window_skip)
        return chunks

    def end(self) -> None:
        self._reader.close()
        self.stats.read_wait_s = self._reader.wait_s
