"""Rows kept for random access: small amounts in memory, more in a temporary file that is memory-mapped.

Sorting, shuffling row by row and grouping need every row within reach. The file has no name: it
disappears with the last process that holds it open, however that process ends. Other
processes get it as an attachment of a message.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paceline.air.attachment import Attachment
from paceline.air.errors import DataError, SerializationError
from paceline.air.words import counted
from paceline.data.block import (
    MOST_BLOCK_ROWS,
    Block,
    ReadRequest,
    Source,
    default_block_rows,
    row_blocks,
    rows_of_block,
)
from paceline.data.formats import conform
from paceline.data.objects import packed, read_rows, write_rows
from paceline.data.plan import chosen

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.plan import Plan

MEMORY_BYTES = 64 << 20
"""Up to this much stays in memory."""
BATCH_BYTES = 32 << 20
"""Rows are stored in portions of about this size; taking rows from all over visits each portion once."""

Indices = npt.NDArray[np.int64]


class StoredSource(Source):
    """Rows in memory or in a temporary file, in blocks of `block_rows` rows.

    `file` is the temporary file, or None for rows in memory. With it another process makes the same
    source: `StoredSource.from_attachment(file, block_rows)`.
    """

    def __init__(
        self,
        batches: Sequence[Chunk],
        schema: pa.Schema,
        *,
        file: Attachment | None = None,
        block_rows: int | None = None,
    ) -> None:
        self._batches = [batch for batch in batches if batch.num_rows]
        self._schema = schema
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)], dtype=np.int64)
        self.rows = int(self._starts[-1])
        self.size_bytes = sum(batch.nbytes for batch in self._batches)
        self.block_rows = block_rows or default_block_rows(self.rows)
        self.file = file
        self.left_out: list[str] = []
        """What could not be read when these rows were."""
        self.made_with: tuple[int, ...] = ()
        """The seeds of what these rows come from."""

    @classmethod
    def from_attachment(cls, file: Attachment, block_rows: int | None = None) -> StoredSource:
        """The rows of a file that `store` wrote."""
        # The view outlives the attachment: it ends with the last array that looks into it.
        schema, batches = read_rows(pa.py_buffer(file.view()))
        return cls(batches, schema, file=file, block_rows=block_rows)

    def with_block_rows(self, block_rows: int) -> StoredSource:
        """The same rows in other blocks."""
        return StoredSource(self._batches, self._schema, file=self.file, block_rows=block_rows)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.file is not None:
            raise SerializationError(
                f"{self.describe()} lies in a temporary file, which cannot be pickled. A trainer with a train function"
                " per worker hands it over; elsewhere, write_parquet() it and read that."
            )
        return _from_bytes, (packed(self._schema, self._batches).to_pybytes(), self.block_rows)

    # -- as a source ----------------------------------------------------------------------

    def describe(self) -> str:
        return f"stored({counted(self.rows, 'row')})"

    def resolved(self) -> StoredSource:
        return self

    def skipped(self) -> list[str]:
        return self.left_out

    def seeds(self) -> tuple[int, ...]:
        return self.made_with

    def schema(self) -> pa.Schema:
        return self._schema

    def blocks(self) -> Sequence[Block]:
        each = self.size_bytes / max(1, self.rows)
        return row_blocks("stored rows", self.rows, self.block_rows, each)

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        wanted = rows_of_block(block, request, self.rows, self.block_rows)
        return self.rows_between(wanted.start, wanted.stop, request)

    def rows_between(self, start: int, stop: int, request: ReadRequest) -> Iterator[Chunk]:
        """Rows start to stop of all; of the request, columns and chunk_rows count."""
        index = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            end = min(stop, int(self._starts[index + 1]), start + request.chunk_rows)
            chunk = self._batches[index].slice(start - int(self._starts[index]), end - start)
            yield chosen(chunk, request.columns, "stored rows")
            start = end
            if start == self._starts[index + 1]:
                index += 1

    # -- random access --------------------------------------------------------------------

    def table(self) -> pa.Table:
        """All rows, without a copy."""
        return pa.Table.from_batches(self._batches, self._schema)

    def take(
        self, indices: Indices, columns: tuple[str, ...] | None = None, missing: npt.NDArray[np.bool_] | None = None
    ) -> Chunk:
        """The rows with these numbers, in this order; nulls in the place of those that are `missing`."""
        present = indices if missing is None else indices[~missing]
        order = np.argsort(present, kind="stable")
        ascending = present[order]
        bounds = np.searchsorted(ascending, self._starts)
        parts = []
        for index in np.flatnonzero(np.diff(bounds)):
            batch = self._batches[index]
            batch = chosen(batch, columns, "stored rows")
            inside = ascending[bounds[index] : bounds[index + 1]] - self._starts[index]
            parts.append(batch.take(pa.array(inside)))
        if not parts:
            empty = pa.RecordBatch.from_pylist([], self._schema)
            parts = [chosen(empty, columns, "stored rows")]
        back = np.empty(len(present), dtype=np.int64)
        back[order] = np.arange(len(present))
        if missing is None:
            return _joined(parts).take(pa.array(back))
        places = np.zeros(len(indices), dtype=np.int64)
        places[~missing] = back
        return _joined(parts).take(pa.array(places, mask=missing))

    def take_in_chunks(
        self, indices: Indices, columns: tuple[str, ...] | None = None, chunk_rows: int | None = None
    ) -> Iterator[Chunk]:
        """The rows with these numbers, in chunks of about BATCH_BYTES at most."""
        step = max(1, int(BATCH_BYTES * max(1, self.rows) / max(1, self.size_bytes)))
        step = min(step, chunk_rows or MOST_BLOCK_ROWS)
        for start in range(0, len(indices), step):
            yield self.take(indices[start : start + step], columns)


def store(
    chunks: Iterator[Chunk], schema: pa.Schema, *, block_rows: int | None = None, directory: str | None = None
) -> StoredSource:
    """Keep these rows. More than MEMORY_BYTES go to a temporary file in `directory` (default: TMPDIR or /tmp)."""
    portions = _portions(chunks, schema)
    held: list[Chunk] = []
    size = 0
    for portion in portions:
        held.append(portion)
        size += portion.nbytes
        if size > MEMORY_BYTES:
            return StoredSource.from_attachment(_write(_after(held, portions), schema, directory), block_rows)
    return StoredSource(held, schema, block_rows=block_rows)


def in_file(source: Source) -> Attachment:
    """The rows of a source in a file that can be handed over: its own, if it lies in one."""
    if isinstance(source, StoredSource) and source.file is not None:
        return source.file
    chunks = (chunk for block in range(len(source.blocks())) for chunk in source.read(block, ReadRequest()))
    return _write(chunks, source.schema(), None)


def stored(plan: Plan) -> StoredSource:
    """All rows of a plan; what is stored already is not stored again."""
    from paceline.data.execution import chunk_rows_for, chunks_of

    if isinstance(plan.source, StoredSource) and not plan.operations:
        return plan.source
    rows = store(chunks_of(plan, chunk_rows=chunk_rows_for(plan)), plan.schema())
    rows.left_out, rows.made_with = plan.skipped(), plan.seeds()
    return rows


def _portions(chunks: Iterator[Chunk], schema: pa.Schema) -> Iterator[Chunk]:
    """The same rows in chunks of about BATCH_BYTES, which hold on to no memory but their own."""
    waiting: list[Chunk] = []
    size = 0
    for chunk in chunks:
        if not chunk.num_rows:
            continue
        if chunk.schema != schema:
            chunk = conform(chunk, schema, "rows to be stored")
        if chunk.get_total_buffer_size() > 2 * chunk.nbytes + 4096:  # a slice of something larger
            chunk = chunk.take(pa.array(np.arange(chunk.num_rows)))
        waiting.append(chunk)
        size += chunk.nbytes
        if size >= BATCH_BYTES:
            yield _joined(waiting)
            waiting, size = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: Sequence[Chunk]) -> Chunk:
    if len(batches) == 1:
        return batches[0]
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch


def _after(held: list[Chunk], rest: Iterator[Chunk]) -> Iterator[Chunk]:
    while held:  # not kept while the rest is read
        yield held.pop(0)
    yield from rest


def _write(portions: Iterator[Chunk], schema: pa.Schema, directory: str | None) -> Attachment:
    """Write a temporary file."""
    place = directory or tempfile.gettempdir()
    file: IO[bytes]
    try:
        with tempfile.TemporaryFile(dir=place, prefix="paceline-rows-") as file:
            # The stream form, unlike the file form, lets every batch have its own dictionaries.
            write_rows(file, schema, portions)
            file.flush()
            return Attachment.from_descriptor(os.dup(file.fileno()))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise DataError(
            f"the rows do not fit into {place} ({error.strerror}):"
            " let the environment variable TMPDIR name a directory with more space."
        ) from error


def _from_bytes(content: bytes, block_rows: int) -> StoredSource:
    schema, batches = read_rows(pa.py_buffer(content))
    return StoredSource(batches, schema, block_rows=block_rows)


SCRATCH_BYTES = 256 << 20
"""So much is kept in memory, over all statistics of one pass."""


@dataclass(frozen=True)
class InFile:
    """An array that lies in the scratch file."""

    offset: int
    count: int
    dtype: np.dtype[np.generic]


Stored = np.ndarray | InFile


class Scratch:
    """Keeps arrays until they are asked for. Threads may put at the same time.

    The file has no name: it disappears with the process, however that ends.
    """

    def __init__(self, memory_bytes: int = SCRATCH_BYTES) -> None:
        self._left = memory_bytes
        self._file: IO[bytes] | None = None
        self._end = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def put(self, values: np.ndarray) -> Stored:
        """Keep a copy of a one-dimensional array."""
        with self._lock:
            if values.nbytes <= self._left:
                self._left -= values.nbytes
                place = None
            else:
                place = InFile(self._end, len(values), values.dtype)
                self._end += values.nbytes
                if self._file is None:
                    self._file = tempfile.TemporaryFile(prefix="paceline-statistics-")  # noqa: SIM115
        if place is None:
            return values.copy()
        self._write(np.ascontiguousarray(values), place.offset)
        return place

    def get(self, stored: Stored) -> np.ndarray:
        """What was put; not to be written to."""
        if isinstance(stored, np.ndarray):
            return stored
        assert self._file is not None
        values = np.empty(stored.count, stored.dtype)
        rest, offset = values.view(np.uint8).data, stored.offset
        while rest:
            count = os.preadv(self._file.fileno(), [rest], offset)
            if count == 0:
                raise DataError("The temporary file of the statistics is shorter than what was written to it.")
            rest, offset = rest[count:], offset + count
        return values

    def _write(self, values: np.ndarray, offset: int) -> None:
        assert self._file is not None
        rest = values.view(np.uint8).data
        try:
            while rest:
                count = os.pwrite(self._file.fileno(), rest, offset)
                rest, offset = rest[count:], offset + count
        except OSError as error:
            raise DataError(
                f"Values for exact quantiles could not be written to a temporary file in {tempfile.gettempdir()}: "
                f"{error.strerror}. Set TMPDIR to a directory with more space."
            ) from error
