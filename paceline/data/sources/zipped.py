"""Two sources side by side: row i of the one next to row i of the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.air.errors import DataError
from paceline.data.block import Block, ReadRequest
from paceline.data.sources.combined import CombinedSource
from paceline.data.sources.slices import RowMap

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk
    from paceline.data.plan import Plan


class ZippedSource(CombinedSource):
    """The columns of both. Blocks are those of the left one.

    Its order is the same in every epoch: if one side were shuffled anew, other rows would meet.
    """

    def __init__(self, left: Plan, right: Plan) -> None:
        super().__init__((left, right))
        self._rows: tuple[RowMap, RowMap] | None = None

    @property
    def _left(self) -> Plan:
        return self.children[0]

    @property
    def _right(self) -> Plan:
        return self.children[1]

    def describe(self) -> str:
        return f"zip({self._left.describe()}, {self._right.describe()})"

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        right = self._right.schema()
        renamed = [right.field(old).with_name(new) for new, old in self._right_names().items()]
        return pa.schema([*self._left.schema(), *renamed])

    def blocks(self) -> Sequence[Block]:
        self._found_rows()
        return [Block(block.name, block.rows) for block in self._left.counted().blocks()]

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        import pyarrow as pa

        left_rows, right_rows = self._found_rows()
        renamed = self._right_names()
        wanted = self.schema().names if request.columns is None else list(request.columns)
        left_columns = tuple(name for name in wanted if name not in renamed)
        right_columns = tuple(renamed[name] for name in wanted if name in renamed)
        begin, end = left_rows.start_of(block), left_rows.start_of(block + 1)
        start = min(end, begin + request.start)
        stop = end if request.stop is None else min(end, begin + request.stop)
        # A side of which no column is wanted is not read.
        if not right_columns:
            yield from self._left.read(block, request)
            return
        right = right_rows.read(self._right, start, stop, replace(request, columns=right_columns))
        if left_columns:
            left = self._left.read(block, replace(request, columns=left_columns))
        else:
            left = None
        right_new = [name for name in wanted if name in renamed]
        for left_part, right_part in _side_by_side(left, right):
            columns = dict(zip(right_new, right_part.columns, strict=True))
            if left_part is not None:
                columns.update(zip(left_columns, left_part.columns, strict=True))
            yield pa.RecordBatch.from_arrays([columns[name] for name in wanted], names=wanted)

    def for_epoch(self, epoch: int) -> ZippedSource:
        return self

    def _right_names(self) -> dict[str, str]:
        return new_names(self._left.schema().names, self._right.schema().names)

    def _found_rows(self) -> tuple[RowMap, RowMap]:
        if self._rows is None:
            left, right = RowMap(self._left.row_counts()), RowMap(self._right.row_counts())
            if left.rows != right.rows:
                raise DataError(
                    f"zip needs two datasets with equally many rows: {self._left.describe()} has {left.rows},"
                    f" {self._right.describe()} has {right.rows}."
                )
            self._rows = left, right
        return self._rows


def new_names(left: Sequence[str], right: Sequence[str]) -> dict[str, str]:
    """New names of the right columns -> their own; one that the left side has gets _1 (or _2, ...) at its end."""
    taken = set(left)
    names: dict[str, str] = {}
    for name in right:
        new, number = name, 0
        while new in taken:
            number += 1
            new = f"{name}_{number}"
        taken.add(new)
        names[new] = name
    return names


def _side_by_side(left: Iterator[Chunk] | None, right: Iterator[Chunk]) -> Iterator[tuple[Chunk | None, Chunk]]:
    """Both streams in portions of the same length."""
    if left is None:
        for chunk in right:
            yield None, chunk
        return
    left_part: Chunk | None = None
    right_part: Chunk | None = None
    while True:
        left_part = left_part or _next_with_rows(left)
        right_part = right_part or _next_with_rows(right)
        if left_part is None or right_part is None:
            if left_part is not right_part:
                raise DataError("zip: one side had fewer rows now than when they were counted.")
            return
        rows = min(left_part.num_rows, right_part.num_rows)
        yield left_part.slice(0, rows), right_part.slice(0, rows)
        left_part = left_part.slice(rows) if left_part.num_rows > rows else None
        right_part = right_part.slice(rows) if right_part.num_rows > rows else None


def _next_with_rows(chunks: Iterator[Chunk]) -> Chunk | None:
    return next((chunk for chunk in chunks if chunk.num_rows), None)
