"""An operation that runs a user's function, in this process or in a pool of others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paceline.data.operation import Operation, Place
from paceline.data.operations.user_function import Spot

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk
    from paceline.data.operations.concurrency import Processes
    from paceline.data.operations.process_pool import ProcessPool
    from paceline.data.operations.work import Work

ROWS_AT_A_TIME = 4096
"""Of functions of rows: enough that a trip to another process costs little per row."""


class UserOperation(Operation):
    """Cuts a block into portions, lets `work` have them, and sees to it that all results have one schema."""

    def __init__(
        self,
        work: Work,
        *,
        processes: Processes | None = None,
        keeps_row_count: bool = False,
        row_local: bool = False,
        keeps_schema: bool = False,
        batch_size: int | None = ROWS_AT_A_TIME,
        exact_batches: bool = False,
    ) -> None:
        """`batch_size` None: whole blocks. `exact_batches`: rows are copied so that only the last batch is short."""
        self.work = work
        self.processes = processes
        self.keeps_row_count = keeps_row_count
        self.row_local = row_local
        self._keeps_schema = keeps_schema
        self._batch_size = batch_size
        self._exact_batches = exact_batches
        self._schema: pa.Schema | None = None
        self._pool: ProcessPool | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_pool", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._pool = None
        self._lock = threading.Lock()

    @property
    def label(self) -> str:
        return self.work.function.label

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        return schema if self._keeps_schema else self._schema

    def run(self, chunks: Iterator[Chunk], place: Place) -> Iterator[Chunk]:
        pieces = _with_spots(self._pieces(chunks), place)
        if self.processes is None:
            return self._in_one_schema(self._results_here(pieces), place)
        from paceline.data.operations.work import portions

        size = self._batch_size
        tasks = (task for chunk, spot in pieces for task in portions(chunk, size or chunk.num_rows, spot))
        return self._in_one_schema(self._running_pool().run(tasks), place)

    def _results_here(self, pieces: Iterator[tuple[Chunk, Spot]]) -> Iterator[Chunk]:
        for chunk, spot in pieces:
            yield from self.work.results_of_all(chunk, self._batch_size or chunk.num_rows, spot)

    def _pieces(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Chunks that can be cut into portions of the batch size; none is empty."""
        from paceline.data.formats import concat
        from paceline.data.iteration.batching import runs

        filled = (chunk for chunk in chunks if chunk.num_rows)
        if self._batch_size is None:
            block = list(filled)
            return iter([concat(block)] if block else [])
        return runs(filled, self._batch_size, drop_last=False) if self._exact_batches else filled

    def _in_one_schema(self, results: Iterator[Chunk], place: Place) -> Iterator[Chunk]:
        """The first result that has rows settles the schema, for this and all later blocks.

        Results without rows say little about types: one is passed on only if a block has no other.
        """
        from paceline.data.operations.work import like_before

        empty: Chunk | None = None
        some = False
        for chunk in results:
            if not chunk.num_rows:
                empty = empty or chunk
                continue
            if self._schema is None:
                self._schema = chunk.schema
            elif chunk.schema != self._schema:
                chunk = like_before(chunk, self._schema, f"What {self.work.function} returned on {place.name}")
            some = True
            yield chunk
        if empty is not None and not some and (self._schema is None or empty.schema == self._schema):
            yield empty

    def _running_pool(self) -> ProcessPool:
        from paceline.data.operations.process_pool import ProcessPool

        assert self.processes is not None
        with self._lock:
            if self._pool is None or not self._pool.usable:
                self._pool = ProcessPool(self.work, self.processes)
            return self._pool

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


def _with_spots(pieces: Iterator[Chunk], place: Place) -> Iterator[tuple[Chunk, Spot]]:
    first = place.start
    for chunk in pieces:
        yield chunk, Spot(place.name, first, chunk.num_rows, place.fresh)
        first += chunk.num_rows
