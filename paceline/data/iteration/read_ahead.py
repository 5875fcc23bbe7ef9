"""Threads that read chunks before they are asked for, in order and in bounded memory."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.air.errors import DataError
from paceline.data.block import ReadRequest

if TYPE_CHECKING:
    from paceline.data.block import Chunk, Source


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
                f"{self._source.describe()}: {self._source.blocks()[piece.block].name} ended after {row:,} rows; when "
                f"they were counted it had {piece.stop:,} or more. A function that keeps other rows each time it is "
                "called needs a fixed seed, or materialize() after it."
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
