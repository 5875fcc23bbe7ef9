"""Running a plan over all of its blocks: in order with reading ahead, or block by block on all cores.

`ReadAhead` is the one reader: threads that read blocks before they are asked for, and give their chunks in order.
`Background` is one thread that runs any iterator ahead of its consumer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from paceline.air.errors import DataError
from paceline.air.resources import usable_cores
from paceline.air.words import counted
from paceline.data.block import DEFAULT_CHUNK_ROWS, ReadRequest

if TYPE_CHECKING:
    from paceline.data.block import Chunk, Source
    from paceline.data.plan import Plan

CLOSING_WAIT_S = 1.0
"""How long the end of a pass waits for its reading threads to notice it."""


@dataclass(frozen=True)
class Piece:
    """Rows start to stop of one block."""

    block: int
    start: int = 0
    stop: int | None = None
    kept: tuple[tuple[int, int], ...] = ()
    """Only these ranges of rows of the block are wanted, in ascending order; empty: all of the piece."""


class _Lane:
    """The chunks of one piece that have been read and not been taken."""

    def __init__(self) -> None:
        self.chunks: deque[Chunk] = deque()
        self.complete = False
        self.error: BaseException | None = None


class ReadAhead:
    """Iterates over the chunks of pieces, one piece after the other.

    Each of `threads` threads reads one piece at a time, at most `depth` chunks ahead of what
    was taken from it, and no piece further ahead than there are threads: memory is bounded by
    threads x (depth + 1) + depth chunks. With threads=0 everything is read in the calling thread. An
    error of a reading thread is raised where its chunk would have come. After close() the threads end
    with the chunk they are at.
    """

    def __init__(
        self, source: Source, pieces: Sequence[Piece], request: ReadRequest, *, threads: int, depth: int = 1
    ) -> None:
        self._source = source
        self._pieces = pieces
        self._request = request
        self._depth = depth
        self._threads = min(threads, len(pieces))
        self._changed = threading.Condition()
        self._lanes: dict[int, _Lane] = {}
        self._next = 0
        """The piece that the next free thread takes."""
        self._reading = 0
        """The piece that the consumer is at."""
        self._closed = False
        self._readers: list[threading.Thread] = []
        self.wait_s = 0.0
        """How long the consumer has waited for chunks."""

    def __iter__(self) -> Iterator[Chunk]:
        if self._threads == 0:
            yield from self._read_here()
            return
        for _ in range(self._threads):
            thread = threading.Thread(target=self._work, name="paceline-data-reader", daemon=True)
            self._readers.append(thread)
            thread.start()
        try:
            for index in range(len(self._pieces)):
                yield from self._take_all(index)
        finally:
            self.close()

    def close(self) -> None:
        """Let the threads end. They are waited for only a moment: a user's function may be running in one."""
        with self._changed:
            self._closed = True
            self._lanes.clear()
            self._changed.notify_all()
            readers, self._readers = self._readers, []
        deadline = time.monotonic() + CLOSING_WAIT_S
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))

    # -- the consumer ---------------------------------------------------------------------

    def _read_here(self) -> Iterator[Chunk]:
        for piece in self._pieces:
            began = time.perf_counter()
            for chunk in self._read(piece):
                self.wait_s += time.perf_counter() - began
                yield chunk
                began = time.perf_counter()
            self.wait_s += time.perf_counter() - began

    def _take_all(self, index: int) -> Iterator[Chunk]:
        while (chunk := self._take(index)) is not None:
            yield chunk

    def _take(self, index: int) -> Chunk | None:
        with self._changed:
            self._reading = index
            lane = self._lanes.get(index)
            if lane is None or not (lane.chunks or lane.complete):
                began = time.perf_counter()
                self._changed.notify_all()
                while True:
                    lane = self._lanes.get(index)
                    if self._closed or (lane is not None and (lane.chunks or lane.complete)):
                        break
                    self._changed.wait()
                self.wait_s += time.perf_counter() - began
            if self._closed or lane is None:
                return None
            if lane.chunks:
                chunk = lane.chunks.popleft()
                self._changed.notify_all()
                return chunk
            del self._lanes[index]
            self._reading = index + 1
            self._changed.notify_all()
        if lane.error is not None:
            raise lane.error
        return None

    # -- a reading thread -----------------------------------------------------------------

    def _work(self) -> None:
        while (taken := self._take_piece()) is not None:
            index, lane = taken
            error: BaseException | None = None
            try:
                for chunk in self._read(self._pieces[index]):
                    if not self._hand_over(lane, chunk):
                        return
            except BaseException as raised:  # raised again in the consumer's thread
                error = raised
            with self._changed:
                lane.error = error
                lane.complete = True
                self._changed.notify_all()
                if error is not None:
                    return

    def _take_piece(self) -> tuple[int, _Lane] | None:
        with self._changed:
            while not self._closed and self._next < len(self._pieces) and self._next > self._reading + self._threads:
                self._changed.wait()
            if self._closed or self._next >= len(self._pieces):
                return None
            index, self._next = self._next, self._next + 1
            lane = self._lanes[index] = _Lane()
            return index, lane

    def _hand_over(self, lane: _Lane, chunk: Chunk) -> bool:
        with self._changed:
            while not self._closed and len(lane.chunks) >= self._depth:
                self._changed.wait()
            if self._closed:
                return False
            lane.chunks.append(chunk)
            self._changed.notify_all()
            return True

    def _read(self, piece: Piece) -> Iterator[Chunk]:
        row = piece.start
        for chunk in self._source.read(piece.block, replace(self._request, start=piece.start, stop=piece.stop)):
            wanted = _picked(chunk, row, piece.kept) if piece.kept else chunk
            row += chunk.num_rows
            if wanted.num_rows:
                yield wanted
        if piece.stop is not None and row < piece.stop:
            # Going on would give ranks unequally many rows, and a stored position would mean other ones.
            raise DataError(
                f"{self._source.describe()}: {self._source.blocks()[piece.block].name} ended after "
                f"{counted(row, 'row')}; when they were counted it had {piece.stop:,} or more. A function that keeps "
                "other rows each time it is called needs a fixed seed, or materialize() after it."
            )


def _picked(chunk: Chunk, first: int, kept: tuple[tuple[int, int], ...]) -> Chunk:
    """Of a chunk that begins with row `first` of its block, the rows that are wanted."""
    import numpy as np
    import pyarrow as pa

    starts, stops = np.array(kept, dtype=np.int64).T
    rows = np.arange(first, first + chunk.num_rows)
    nearest = np.searchsorted(starts, rows, side="right") - 1  # the range that begins at a row or before it
    wanted = np.flatnonzero((nearest >= 0) & (rows < stops[nearest]))
    return chunk if len(wanted) == len(rows) else chunk.take(pa.array(wanted))


T = TypeVar("T")

TARGET_CHUNK_BYTES = 16 << 20
"""Large enough that Python's share of the work is small, small enough that a few of them are no burden."""
MOST_CHUNK_ROWS = 262_144
FEWEST_CHUNK_ROWS = 256


def chunk_rows_for(plan: Plan, batch_rows: int | None = None) -> int:
    """How many rows to read at a time: about TARGET_CHUNK_BYTES, and whole batches."""
    rows = DEFAULT_CHUNK_ROWS
    for block in plan.source.blocks()[:1]:
        if block.size_bytes and block.rows:
            rows = int(TARGET_CHUNK_BYTES / (block.size_bytes / block.rows))
    rows = min(max(rows, FEWEST_CHUNK_ROWS), MOST_CHUNK_ROWS)
    if batch_rows is not None and batch_rows <= rows:
        rows -= rows % batch_rows
    return rows


def map_blocks(
    plan: Plan, work: Callable[[int, Iterator[Chunk]], T], *, columns: tuple[str, ...] | None = None
) -> Iterator[T]:
    """`work(block, chunks)` for every block; results come in the order of blocks.

    Several blocks at a time where no code of the user's runs: Arrow and numpy let other threads
    work meanwhile. At most two blocks per thread are under way.
    """
    request = ReadRequest(columns=columns, chunk_rows=chunk_rows_for(plan))
    count = len(plan.blocks())
    threads = min(usable_cores(), count) if plan.native else 1

    def run(block: int) -> T:
        return work(block, plan.read(block, request))

    if threads <= 1:
        for block in range(count):
            yield run(block)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="paceline-data")
    try:
        under_way: deque[Future[T]] = deque()
        for block in range(count):
            under_way.append(pool.submit(run, block))
            if len(under_way) >= 2 * threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def chunks_of(
    plan: Plan, *, columns: tuple[str, ...] | None = None, chunk_rows: int = DEFAULT_CHUNK_ROWS
) -> Iterator[Chunk]:
    """All chunks of a plan in order, read ahead by threads."""
    pieces = [Piece(block) for block in range(len(plan.blocks()))]
    request = ReadRequest(columns=columns, chunk_rows=chunk_rows)
    threads = min(usable_cores(), max(1, len(pieces))) if plan.native else 1
    reader = ReadAhead(plan, pieces, request, threads=threads, depth=2)
    try:
        yield from reader
    finally:
        reader.close()


def count_rows(plan: Plan) -> tuple[int, ...]:
    """Rows of every block, by running the plan once; what is counted is not kept."""

    def count(_: int, chunks: Iterator[Chunk]) -> int:
        return sum(chunk.num_rows for chunk in chunks)

    return tuple(map_blocks(plan, count))


class Background(Generic[T]):
    """Iterates over `items`, at most `depth` of which are made before they are asked for.

    An error is raised where its item would have come. After close() the thread ends with the item it is at.
    """

    def __init__(self, items: Iterable[T], depth: int) -> None:
        self._items = items
        self._depth = depth
        self._changed = threading.Condition()
        self._made: deque[T] = deque()
        self._complete = False
        self._closed = False
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[T]:
        threading.Thread(target=self._work, name="paceline-data-batches", daemon=True).start()
        try:
            while True:
                with self._changed:
                    while not self._made and not self._complete:
                        self._changed.wait()
                    if not self._made:
                        break
                    item = self._made.popleft()
                    self._changed.notify_all()
                yield item
        finally:
            self.close()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._made.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    while len(self._made) >= self._depth and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
                    self._made.append(item)
                    self._changed.notify_all()
                del item
        except BaseException as error:  # raised again in the consumer's thread
            self._error = error
        finally:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()
            with self._changed:
                self._complete = True
                self._changed.notify_all()
