"""Plan: a source and the operations on it. A plan is a source itself, so plans can be combined."""

from __future__ import annotations

import copy
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from paceline.air.errors import DataError
from paceline.data.block import Block, Origin, ReadRequest, Source, TimedStage

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk


@dataclass(frozen=True)
class BlockPlace:
    """Where an operation is working: for messages, and as part of the seed of what is random."""

    block: int
    name: str
    start: int = 0
    """The first row that comes in, counted from the beginning of the block."""
    fresh: bool = False
    """What comes in is memory that nobody else refers to."""


class Operation(ABC):
    """From the chunks of one block to the chunks of the same block afterwards.

    Picklable; what must not travel (an instance of a user's class, a process pool) is made on
    first use in each process and left out of `__getstate__`.
    """

    keeps_row_count: bool = False
    """As many rows come out of a block as went in."""
    row_local: bool = False
    """Row i of the output depends on row i of the input alone, so that work may start anywhere in a block."""
    native: bool = False
    """Runs no code of the user's, and may be used by several threads at once."""
    keeps_memory_apart: bool = True
    """Of a native one: what comes out refers to the memory of its input, or to memory that nothing else refers to."""

    seeds: tuple[int, ...] = ()
    """Of what it does at random."""

    @property
    @abstractmethod
    def label(self) -> str:
        """For messages and stats: "map_batches(normalise)"."""

    @abstractmethod
    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        """The block after this operation. All chunks that come out have one schema.

        Raises DataError that names the operation and the place; an exception of the user's function is its cause.
        """

    def input_columns(self, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Which columns of the input are needed to make the `wanted` ones of the output; None: all."""
        return None

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        """The schema afterwards, if it can be told without running; else None."""
        return None

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """Give back what was made on first use (processes); it is made anew if needed again."""


class Plan(Source):
    """Immutable but for what it has found out about itself (schema, rows per block)."""

    def __init__(self, source: Source, operations: tuple[Operation, ...] = ()) -> None:
        if isinstance(source, Plan):  # one flat list of operations reads and optimises better than nested plans
            operations = (*source.operations, *operations)
            source = source.source
        self.source: Source = source
        self.operations: tuple[Operation, ...] = operations
        self._schema: pa.Schema | None = None
        self._counts: tuple[int, ...] | None = None
        self._counting_s: float | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    # -- what is known without reading ----------------------------------------------------

    @property
    def fresh(self) -> bool:  # type: ignore[override]  # derived here, a constant in the base
        # A user's function may hand out memory that it keeps; native operations do not.
        apart = (operation.native and operation.keeps_memory_apart for operation in self.operations)
        return self.source.fresh and all(apart)

    @property
    def native(self) -> bool:  # type: ignore[override]  # derived here, a constant in the base
        return self.source.native and all(operation.native for operation in self.operations)

    @property
    def worker_share(self) -> bool:  # type: ignore[override]  # derived here, a constant in the base
        return self.source.worker_share

    @property
    def row_local(self) -> bool:
        """True if work may start in the middle of a block."""
        return all(operation.row_local for operation in self.operations)

    def describe(self) -> str:
        return " -> ".join([self.source.describe(), *(operation.label for operation in self.operations)])

    def then(self, operation: Operation) -> Plan:
        return Plan(self.source, (*self.operations, operation))

    def blocks(self) -> Sequence[Block]:
        blocks = self.source.blocks()
        if self._counts is not None:
            return [Block(block.name, rows) for block, rows in zip(blocks, self._counts, strict=True)]
        if all(operation.keeps_row_count for operation in self.operations):
            if not self.operations:
                return blocks
            return [Block(block.name, block.rows) for block in blocks]
        return [Block(block.name) for block in blocks]

    @property
    def is_counted(self) -> bool:
        """True if the rows have been counted by reading them."""
        return self._counts is not None

    @property
    def knows_counts(self) -> bool:
        """True if the number of rows of every block is known without reading."""
        return all(block.rows is not None for block in self.blocks())

    def schema(self) -> pa.Schema:
        if self._schema is None:
            self._schema = self._find_schema()
        return self._schema

    @property
    def known_schema(self) -> pa.Schema | None:
        schema = self._schema
        if schema is None:
            schema = self.source.known_schema
            for operation in self.operations:
                schema = None if schema is None else operation.output_schema(schema)
        return schema

    def _find_schema(self) -> pa.Schema:
        schema = self.source.schema()
        for operation in self.operations:
            after = operation.output_schema(schema)
            if after is None:
                return self._schema_by_running()
            schema = after
        return schema

    def _schema_by_running(self) -> pa.Schema:
        import pyarrow as pa

        empty: pa.Schema | None = None
        for block in range(len(self.source.blocks())):
            # A small chunk is enough, unless an operation needs whole batches: it will ask for more itself.
            for chunk in self.read(block, ReadRequest(chunk_rows=1024)):
                if chunk.num_rows:
                    return chunk.schema
                empty = chunk.schema
        return empty if empty is not None else pa.schema([])

    # -- reading --------------------------------------------------------------------------

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        if not self.operations:
            chunks = self.source.read(block, request)
            yield from chunks if request.times is None else TimedStage(chunks, "reading", request.times, None)
            return
        name = self.source.blocks()[block].name
        columns = request.columns
        for operation in reversed(self.operations):
            columns = operation.input_columns(columns)
        inner = replace(request, columns=columns, times=None)
        if not self.row_local:  # the operations see the block from its first row on; the rest is cut off afterwards
            inner = replace(inner, start=0, stop=None)
        chunks = self.source.read(block, inner)
        fresh = self.source.fresh
        timed: TimedStage | None = None
        if request.times is not None:
            chunks = timed = TimedStage(chunks, "reading", request.times, None)
        for operation in self.operations:
            chunks = operation.run(chunks, BlockPlace(block, name, inner.start, fresh))
            if request.times is not None:
                chunks = timed = TimedStage(chunks, operation.label, request.times, timed)
            fresh = fresh and operation.native and operation.keeps_memory_apart
        if not self.row_local and (request.start or request.stop is not None):
            chunks = cut(chunks, request.start, request.stop)
        for chunk in chunks:
            yield chosen(chunk, request.columns, name)

    # -- counting -------------------------------------------------------------------------

    def counted(self) -> Plan:
        """This plan with the rows of every block known: by metadata, or by running it once."""
        if not self.knows_counts:
            with self._lock:
                if self._counts is None:
                    from paceline.data.execution import count_rows

                    began = time.perf_counter()
                    # Operations that keep rows need not be run to count them.
                    keeps = all(operation.keeps_row_count for operation in self.operations)
                    self._counts = count_rows(Plan(self.source) if keeps else self)
                    self._counting_s = time.perf_counter() - began
        return self

    def row_counts(self) -> list[int]:
        """Rows per block, all known."""
        counts = [block.rows for block in self.counted().blocks()]
        return [rows for rows in counts if rows is not None]

    def notes(self) -> list[str]:
        """What users should know about how this plan is run: passes made, rows skipped."""
        notes = [f"skipped: {each}" for each in self.source.skipped()]
        if self._counting_s is not None:
            notes.append(f"counting the rows took one pass of {self._counting_s:.3f} s")
        return notes

    def skipped(self) -> list[str]:
        return self.source.skipped()

    def input_files(self) -> list[str]:
        return self.source.input_files()

    def origin(self) -> Origin:
        return self.source.origin().then(*(operation.label for operation in self.operations))

    def seeds(self) -> tuple[int, ...]:
        return (*self.source.seeds(), *(seed for operation in self.operations for seed in operation.seeds))

    # -- barriers and epochs --------------------------------------------------------------

    def resolved(self) -> Plan:
        return self._around(self.source.resolved())

    def for_epoch(self, epoch: int) -> Plan:
        return self._around(self.source.for_epoch(epoch))

    def _around(self, source: Source) -> Plan:
        if source is self.source:
            return self
        plan = Plan(source, self.operations)
        plan._schema = self._schema
        return plan

    def close(self) -> None:
        """Give back what the operations hold."""
        for operation in self.operations:
            operation.close()


class CombinedSource(Source):
    """Base: what it passes on from `children`, it passes on as it is."""

    def __init__(self, children: tuple[Plan, ...]) -> None:
        self.children = children

    @property
    def child(self) -> Plan:
        """The only one, or the first."""
        return self.children[0]

    @property
    def fresh(self) -> bool:  # type: ignore[override]  # derived here, a constant in the base
        return all(child.fresh for child in self.children)

    @property
    def native(self) -> bool:  # type: ignore[override]  # derived here, a constant in the base
        return all(child.native for child in self.children)

    @property
    def worker_share(self) -> bool:  # type: ignore[override]  # derived here, a constant in the base
        return any(child.worker_share for child in self.children)

    def skipped(self) -> list[str]:
        return [line for child in self.children for line in child.skipped()]

    def input_files(self) -> list[str]:
        return list(dict.fromkeys(file for child in self.children for file in child.input_files()))

    def origin(self) -> Origin:
        return Origin.of_all(self.children).then(self.describe())

    def seeds(self) -> tuple[int, ...]:
        return tuple(seed for child in self.children for seed in child.seeds())

    def resolved(self) -> Self:
        return self._over(tuple(child.resolved() for child in self.children))

    def for_epoch(self, epoch: int) -> Self:
        return self._over(tuple(child.for_epoch(epoch) for child in self.children))

    def _over(self, children: tuple[Plan, ...]) -> Self:
        """The same with other children; what has been found out is kept."""
        if all(new is old for new, old in zip(children, self.children, strict=True)):
            return self
        twin = copy.copy(self)
        twin.children = children
        return twin


def cut(chunks: Iterator[Chunk], start: int, stop: int | None) -> Iterator[Chunk]:
    """The rows start to stop of a stream; what follows is not read."""
    seen = 0
    for chunk in chunks:
        low = max(0, start - seen)
        high = chunk.num_rows if stop is None else min(chunk.num_rows, stop - seen)
        if low < high:
            yield chunk if (low, high) == (0, chunk.num_rows) else chunk.slice(low, high - low)
        seen += chunk.num_rows
        if stop is not None and seen >= stop:
            return


def chosen(chunk: Chunk, columns: tuple[str, ...] | None, place: str) -> Chunk:
    """These columns of a chunk, in this order; None: all."""
    names = chunk.schema.names
    if columns is None or tuple(names) == columns:
        return chunk
    known = set(names)
    for column in columns:
        if column not in known:
            raise DataError(f"{place}: there is no column {column!r}; the columns are {names}.")
    return chunk.select(list(columns))
