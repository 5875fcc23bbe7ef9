"""What everything in this package is made of: sources, their blocks, and the chunks that flow out of them.

A *source* is an ordered list of *blocks* (a row group of a Parquet file, a stretch of lines of a text
file, a slice of a table). A block is read as a stream of *chunks*: Arrow record batches of
at most `chunk_rows` rows, so that memory does not depend on the size of a block. Chunks
carry the same schema throughout a source. Nothing outside this file depends on where rows come from.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from paceline.air.absent import advise
from paceline.air.data_batch_type import DataBatchType

if TYPE_CHECKING:
    import pyarrow as pa

    Chunk: TypeAlias = pa.RecordBatch

DEFAULT_CHUNK_ROWS = 65_536


@dataclass(frozen=True)
class Block:
    """What is known of a block without reading its rows."""

    name: str
    """For messages: "sales-07.parquet, row group 2"."""
    rows: int | None = None
    """None: known only after reading it."""
    size_bytes: int | None = None
    """About what its rows take in memory; None: unknown."""


@dataclass
class BlockMetadata:
    """What a read task of a `Datasource` says of its block; None: unknown."""

    num_rows: int | None = None
    size_bytes: int | None = None
    schema: pa.Schema | None = None
    input_files: Sequence[str] | None = None
    exec_stats: object = None


class StageTimes:
    """Seconds by stage, in the order in which stages were first seen."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[StageTimes], tuple[()]]:
        """Datasets travel to workers; what was measured here stays here."""
        return StageTimes, ()

    def add(self, stage: str, seconds: float) -> None:
        with self._lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


class TimedStage:
    """A stream of chunks that notes how long each one took to make, without the time of the stages before it."""

    def __init__(self, chunks: Iterator[Chunk], stage: str, times: StageTimes, before: TimedStage | None) -> None:
        self._chunks = chunks
        self._stage = stage
        self._times = times
        self._before = before
        self.total = 0.0
        """Its own time and that of the stages before it."""

    def __iter__(self) -> TimedStage:
        return self

    def __next__(self) -> Chunk:
        before = self._before.total if self._before is not None else 0.0
        began = time.perf_counter()
        try:
            return next(self._chunks)
        finally:
            spent = time.perf_counter() - began
            self.total += spent
            earlier = (self._before.total if self._before is not None else 0.0) - before
            self._times.add(self._stage, max(0.0, spent - earlier))


@dataclass(frozen=True)
class ReadRequest:
    """Which part of a block is wanted, and in which portions."""

    start: int = 0
    stop: int | None = None
    """Rows of the block, as in a slice; None: to its end."""
    columns: tuple[str, ...] | None = None
    """Only these, in this order; None: all."""
    chunk_rows: int = DEFAULT_CHUNK_ROWS
    """At most this many rows in a chunk."""
    threads: int = 1
    """How many threads decoding one block may use."""
    times: StageTimes | None = field(default=None, compare=False)
    """Where to note how long reading and each operation took."""

    def within(self, begin: int, end: int) -> tuple[int, int]:
        """Which rows of a whole are wanted, where the block is the rows `begin` to `end` of it."""
        start = min(end, begin + self.start)
        return start, end if self.stop is None else max(start, min(end, begin + self.stop))


@dataclass(frozen=True)
class Origin:
    """What tells a dataset from another one with as many rows, as far as it is known without reading them."""

    files: tuple[str, ...] = ()
    """Their names, with what tells one version of a file from another."""
    steps: tuple[str, ...] = ()
    """From the files to the rows."""

    @classmethod
    def of_all(cls, sources: Iterable[Source]) -> Origin:
        each = [source.origin() for source in sources]
        files = dict.fromkeys(file for origin in each for file in origin.files)
        return cls(tuple(files), tuple(step for origin in each for step in origin.steps))

    def then(self, *steps: str) -> Origin:
        return Origin(self.files, (*self.steps, *steps))


class Source(ABC):
    """Where rows come from. Small, immutable and picklable: it travels to every worker.

    Metadata (the list of blocks, the schema) is found out once, on first use, and travels along.
    """

    fresh: bool = False
    """What `read` gives is memory that nobody else refers to: it may be handed to users without a copy."""
    native: bool = True
    """Reading runs no code of the user's: blocks may be read by several threads at once."""

    worker_share: bool = False
    """Rows of one worker's part of a dataset: every worker has others."""

    @abstractmethod
    def blocks(self) -> Sequence[Block]:
        """The blocks, in the order of their rows. Cheap after the first call."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Names and types of the columns; may read a first chunk where nothing else says it."""

    @property
    def known_schema(self) -> pa.Schema | None:
        """The same if it has been found out already; nothing is read for it."""
        found: pa.Schema | None = getattr(self, "_schema", None)
        return found

    @abstractmethod
    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        """The rows of one block. Raises DataError that names the place for what cannot be read."""

    def resolved(self) -> Source:
        """The same rows as a source that needs no computation over all of them any more.

        Sorting, global shuffling and grouping are done here, once, in the driver, before workers are started.
        """
        return self

    def for_epoch(self, epoch: int) -> Source:
        """The same rows in the order of that epoch; the source itself where the order is always the same."""
        return self

    def skipped(self) -> list[str]:
        """What was left out because it could not be read, where the user allowed that: one line each."""
        return []

    def input_files(self) -> list[str]:
        """The files that rows are read from, in their order."""
        return []

    def origin(self) -> Origin:
        """Where the rows come from, and how; nothing is read for it."""
        return Origin(tuple(self.input_files()), (self.describe(),))

    def seeds(self) -> tuple[int, ...]:
        """All seeds that decide which rows there are and in which order: with others it is another dataset."""
        return ()

    def describe(self) -> str:
        """A short name for messages and repr."""
        return type(self).__name__


# Types of older programs, for annotations.
CallableClass = type
DataBatch = DataBatchType

_BLOCKS = 'map_batches(function, batch_format="pyarrow", batch_size=None) gets the rows of a block as a table'
advise(
    __name__,
    {"BlockAccessor": _BLOCKS, "BlockExecStats": "dataset.stats() says where time went", "TableRow": "rows are dicts"},
)


FEWEST_BLOCK_ROWS = 1024
MOST_BLOCK_ROWS = 65_536


def default_block_rows(rows: int) -> int:
    """About 16 blocks, so that a shuffle of blocks means something; none so small that batches become tiny in it."""
    return max(FEWEST_BLOCK_ROWS, min(MOST_BLOCK_ROWS, -(-rows // 16)))


def row_blocks(
    name: str, rows: int, block_rows: int, row_bytes: float | None = None, unit: str = "rows"
) -> list[Block]:
    """Blocks of `block_rows` rows, the last one shorter. Messages count rows from the beginning of a block."""
    blocks = []
    for number, start in enumerate(range(0, rows, block_rows)):
        stop = min(rows, start + block_rows)
        part = f", block {number} ({unit} {start} to {stop - 1})" if rows > block_rows else ""
        size = None if row_bytes is None else int((stop - start) * row_bytes)
        blocks.append(Block(f"{name}{part}", stop - start, size))
    return blocks


def rows_of_block(block: int, request: ReadRequest, rows: int, block_rows: int) -> range:
    """Which rows of a source with such blocks a request is about."""
    begin = block * block_rows
    return range(*request.within(begin, min(rows, begin + block_rows)))
