"""The same rows in another number of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from paceline.data.block import Block, ReadRequest
from paceline.data.sources.combined import CombinedSource
from paceline.data.sources.shuffled import even_cuts
from paceline.data.sources.slices import RowMap

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk
    from paceline.data.plan import Plan


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
        start = min(cuts[block] + request.start, cuts[block + 1])
        stop = cuts[block + 1] if request.stop is None else min(cuts[block] + request.stop, cuts[block + 1])
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
