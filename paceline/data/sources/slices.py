"""Rows of plans cut and put together: limit, splits, repartition, union. Only what is wanted is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from paceline.air.errors import DataError
from paceline.data.block import DEFAULT_CHUNK_ROWS, Block, ReadRequest, Source
from paceline.data.execution import Piece
from paceline.data.plan import CombinedSource, Plan
from paceline.data.sources.shuffled import RowShuffled, ShuffledSlice, block_permutation, even_cuts

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk


def sliced(plan: Plan, start: int, stop: int) -> Source:
    """Rows start to stop of a plan, cut off as near to the source as can be."""
    if plan.operations and plan.row_local and all(operation.keeps_row_count for operation in plan.operations):
        inner = Plan(plan.source)
        inner._counts = plan._counts  # the operations keep them
        return Plan(sliced(inner, start, stop), plan.operations)
    if not plan.operations and isinstance(plan.source, RowShuffled | ShuffledSlice):
        return plan.source.sliced(start, stop)
    return SliceSource(plan, start, stop)


class SliceSource(CombinedSource):
    """Rows start to stop of `child`.

    Which rows those are does not change from epoch to epoch, or the rows of a test set would get into the
    training set: below a slice, everything keeps the order of epoch 0. Where the child is
    shuffled anew in each epoch, the pieces of the slice are.
    """

    def __init__(self, child: Plan, start: int, stop: int, epoch: int = 0) -> None:
        super().__init__((child,))
        self._start = start
        self._stop = stop
        self._epoch = epoch
        self._pieces: list[Piece] | None = None

    def describe(self) -> str:
        return f"{self.child.describe()} -> rows {self._start} to {self._stop}"

    def schema(self) -> pa.Schema:
        return self.child.schema()

    def blocks(self) -> Sequence[Block]:
        inner = self.child.blocks()
        return [part_of(inner[piece.block], piece) for piece in self._found_pieces()]

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        piece = self._found_pieces()[block]
        assert piece.stop is not None
        start, stop = request.within(piece.start, piece.stop)
        yield from self.child.read(piece.block, replace(request, start=start, stop=stop))

    def for_epoch(self, epoch: int) -> SliceSource:
        if epoch == self._epoch or self.child.for_epoch(epoch or 1) is self.child:
            return self
        return SliceSource(self.child, self._start, self._stop, epoch)

    def _found_pieces(self) -> list[Piece]:
        if self._pieces is None:
            pieces = list(pieces_between(_counts_up_to(self.child, self._stop), self._start, self._stop))
            if self._epoch:
                pieces = [pieces[index] for index in block_permutation(len(pieces), self._start, self._epoch)]
            self._pieces = pieces
        return self._pieces


class RowMap:
    """Finds the blocks in which rows lie, counted over all blocks."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._ends = np.cumsum([0, *counts], dtype=np.int64)
        self.rows = int(self._ends[-1])

    def start_of(self, block: int) -> int:
        """The number of the first row of a block."""
        return int(self._ends[block])

    def read(self, plan: Plan, start: int, stop: int, request: ReadRequest) -> Iterator[Chunk]:
        """Rows start to stop of the plan whose counts these are."""
        block = max(0, int(np.searchsorted(self._ends, start, side="right")) - 1)
        while start < stop:
            begin, end = int(self._ends[block]), int(self._ends[block + 1])
            last = min(stop, end)
            if last > start:
                yield from plan.read(block, replace(request, start=start - begin, stop=last - begin))
                start = last
            block += 1


def pieces_between(counts: Iterable[int], start: int, stop: int) -> Iterator[Piece]:
    """Where the rows start to stop lie, given the rows of each block; counts beyond `stop` are not asked for."""
    seen = 0
    if start >= stop:
        return
    for block, rows in enumerate(counts):
        low, high = max(0, start - seen), min(rows, stop - seen)
        if low < high:
            yield Piece(block, low, high)
        seen += rows
        if seen >= stop:
            return


def part_of(block: Block, piece: Piece) -> Block:
    """What is known of a piece of a block."""
    assert piece.stop is not None
    rows = piece.stop - piece.start
    if rows == block.rows:
        return block
    size = None if block.size_bytes is None or not block.rows else block.size_bytes * rows // block.rows
    return Block(f"{block.name}, rows {piece.start} to {piece.stop}", rows, size)


def _counts_up_to(plan: Plan, stop: int) -> Iterator[int]:
    """Rows of each block. Where they must be counted, counting ends at `stop`: limit(5) reads one chunk."""
    seen = 0
    for index, block in enumerate(plan.blocks()):
        rows = block.rows
        if rows is None:
            wanted = stop - seen
            request = ReadRequest(stop=wanted, chunk_rows=min(DEFAULT_CHUNK_ROWS, max(1024, wanted)))
            rows = sum(chunk.num_rows for chunk in plan.read(index, request))
        yield rows
        seen += rows


class RepartitionedSource(CombinedSource):
    """Blocks whose sizes differ by one row at most, in the order of the child's rows."""

    def __init__(self, child: Plan, num_blocks: int) -> None:
        super().__init__((child,))
        self._num_blocks = num_blocks
        self._layout: tuple[RowMap, list[int]] | None = None

    def describe(self) -> str:
        return f"{self.child.describe()} -> repartition({self._num_blocks})"

    def schema(self) -> pa.Schema:
        return self.child.schema()

    def blocks(self) -> Sequence[Block]:
        _, cuts = self._found_layout()
        return [
            Block(f"repartition({self._num_blocks}), rows {start} to {stop}", stop - start)
            for start, stop in pairwise(cuts)
        ]

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        rows, cuts = self._found_layout()
        start, stop = request.within(cuts[block], cuts[block + 1])
        yield from rows.read(self.child, start, stop, request)

    def for_epoch(self, epoch: int) -> RepartitionedSource:
        child = self.child.for_epoch(epoch)
        # Blocks below may have changed places, so where rows lie has to be found out again.
        return self if child is self.child else RepartitionedSource(child, self._num_blocks)

    def _found_layout(self) -> tuple[RowMap, list[int]]:
        if self._layout is None:
            rows = RowMap(self.child.row_counts())
            self._layout = rows, even_cuts(rows.rows, self._num_blocks)
        return self._layout


class UnionSource(CombinedSource):
    """The rows of all children. They have the same columns; types are widened to what holds them all."""

    def __init__(self, children: tuple[Plan, ...]) -> None:
        super().__init__(children)
        self._schema: pa.Schema | None = None

    def describe(self) -> str:
        return f"union({', '.join(child.describe() for child in self.children)})"

    def schema(self) -> pa.Schema:
        if self._schema is None:
            self._schema = _common_schema([child.schema() for child in self.children])
        return self._schema

    def blocks(self) -> Sequence[Block]:
        return [block for child in self.children for block in child.blocks()]

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        import pyarrow as pa

        from paceline.data.formats import conform

        child, inner = self._place(block)
        schema = self.schema()
        if request.columns is not None:
            schema = pa.schema([schema.field(name) for name in request.columns])
        name = child.blocks()[inner].name
        for chunk in child.read(inner, request):
            yield chunk if chunk.schema == schema else conform(chunk, schema, name)

    def _place(self, block: int) -> tuple[Plan, int]:
        for child in self.children:
            count = len(child.blocks())
            if block < count:
                return child, block
            block -= count
        raise IndexError(block)


def _common_schema(schemas: list[pa.Schema]) -> pa.Schema:
    import pyarrow as pa

    schemas = [schema for schema in schemas if schema.names] or schemas[:1]  # nothing is known of no rows
    first = schemas[0]
    for number, schema in enumerate(schemas[1:], 2):
        if set(schema.names) != set(first.names):
            missing = sorted(set(first.names) ^ set(schema.names))
            raise DataError(
                f"union: dataset {number} has the columns {schema.names}, the first one has {first.names};"
                f" {missing} are not in both. Use select_columns or add_column to make them the same."
            )
    try:
        unified = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"union: the types of a column do not go together: {error}") from error
    return pa.schema([unified.field(name) for name in first.names])
