"""Sources for groupby: one row per group, and rows in blocks that no group reaches beyond."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.block import Block, ReadRequest, Source
from paceline.data.row_blocks import default_block_rows
from paceline.data.sources.computed import ComputedSource
from paceline.data.sources.sorted_rows import SortedSource, sortable
from paceline.data.store import StoredSource, store

if TYPE_CHECKING:
    from paceline.data.aggregation import Aggregator
    from paceline.data.block import Chunk
    from paceline.data.plan import Plan


class AggregatedSource(ComputedSource):
    """One row per group, in the order of the keys."""

    def __init__(self, child: Plan, aggregator: Aggregator) -> None:
        super().__init__((child,))
        self._aggregator = aggregator

    def describe(self) -> str:
        return "aggregate"

    def _schema_before(self) -> pa.Schema | None:
        return self._aggregator.schema(self._children[0].schema())

    def _rows_before(self) -> None:
        return None

    def _compute(self) -> StoredSource:
        table = self._aggregator.run(self._children[0])
        return store(iter(table.to_batches()), table.schema)


class WholeGroups(Source):
    """Rows sorted by key, each group in one block."""

    def __init__(self, child: Plan, keys: tuple[str, ...]) -> None:
        self._sorted: SortedSource | StoredSource = SortedSource(child, tuple((key, False) for key in keys), "groupby")
        self._keys = keys
        self._cuts: list[int] | None = None

    def describe(self) -> str:
        return f"groupby({', '.join(self._keys)})"

    def schema(self) -> pa.Schema:
        return self._sorted.schema()

    def skipped(self) -> list[str]:
        return self._sorted.skipped()

    def input_files(self) -> list[str]:
        return self._sorted.input_files()

    def blocks(self) -> Sequence[Block]:
        cuts = self._found_cuts()
        return [
            Block(f"{self.describe()}, sorted rows {start} to {stop - 1}", stop - start)
            for start, stop in pairwise(cuts)
        ]

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        begin, end = self._found_cuts()[block : block + 2]
        start = min(end, begin + request.start)
        stop = end if request.stop is None else min(end, begin + request.stop)
        yield from self._sorted.resolved().rows_between(start, stop, request)

    def resolved(self) -> WholeGroups:
        self._found_cuts()
        twin = copy.copy(self)
        twin._sorted = self._sorted.resolved()
        return twin

    def _found_cuts(self) -> list[int]:
        if self._cuts is None:
            rows = self._sorted.resolved()
            starts = np.flatnonzero(np.concatenate(list(self._group_starts(rows)) or [np.zeros(0, bool)]))
            wanted = np.arange(0, rows.rows, default_block_rows(rows.rows))
            places = np.searchsorted(starts, wanted)
            cuts = np.unique(starts[places[places < len(starts)]])
            self._cuts = [*cuts.tolist(), rows.rows] if rows.rows else [0]
        return self._cuts

    def _group_starts(self, rows: StoredSource) -> Iterator[npt.NDArray[np.bool_]]:
        before: Chunk | None = None
        for chunk in rows.rows_between(0, rows.rows, ReadRequest(columns=self._keys)):
            yield starts_of_groups(chunk, self._keys, before)
            before = chunk.slice(chunk.num_rows - 1)


def starts_of_groups(rows: Chunk, keys: tuple[str, ...], before: Chunk | None) -> npt.NDArray[np.bool_]:
    """Whether each of these sorted rows has another key than the one above it; `before`: the row above the first."""
    columns = pa.Table.from_batches([rows.select(list(keys))])
    if before is not None:
        columns = pa.concat_tables([pa.Table.from_batches([before.select(list(keys))]), columns])
    differs = np.zeros(max(0, len(columns) - 1), dtype=bool)
    for column in sortable(columns, list(keys), "groupby").columns:
        if pa.types.is_null(column.type):
            continue  # all the same
        above, below = column.slice(0, len(column) - 1), column.slice(1)
        unequal = pc.not_equal(above, below)
        if pa.types.is_floating(column.type):  # NaN counts as equal to NaN
            unequal = pc.and_(unequal, pc.invert(pc.and_(pc.is_nan(above), pc.is_nan(below))))
        one_null = pc.xor(pc.is_null(above), pc.is_null(below))
        differs |= pc.or_(pc.fill_null(unequal, False), one_null).to_numpy()
    first = np.ones(1 if before is None and len(columns) else 0, dtype=bool)
    return np.concatenate([first, differs])
