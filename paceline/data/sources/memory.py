"""Sources that need no file: a table in memory, and numbers that are counted up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, ReadRequest, Source, default_block_rows, row_blocks, rows_of_block
from paceline.data.objects import packed, read_rows
from paceline.data.plan import chosen
from paceline.data.tensors import tensor_array

if TYPE_CHECKING:
    from paceline.data.block import Chunk


class TableSource(Source):
    """A table in memory. Chunks share its memory.

    Pickling copies all rows that the table shows (not those around a slice): right for small tables.
    """

    def __init__(self, table: pa.Table, block_rows: int | None = None) -> None:
        self.table = table.combine_chunks()
        self.block_rows = block_rows or default_block_rows(table.num_rows)
        self._blocks = self._cut()

    def __getstate__(self) -> dict[str, Any]:
        return {"table": packed(self.table.schema, self.table.to_batches()), "block_rows": self.block_rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        schema, batches = read_rows(state["table"])
        self.table = pa.Table.from_batches(batches, schema)
        self.block_rows = state["block_rows"]
        self._blocks = self._cut()

    def _cut(self) -> Sequence[Block]:
        rows = self.table.num_rows
        each = self.table.nbytes / rows if rows else 0.0
        return row_blocks("in-memory table", rows, self.block_rows, each)

    def blocks(self) -> Sequence[Block]:
        return self._blocks

    def schema(self) -> pa.Schema:
        return self.table.schema

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        rows = rows_of_block(block, request, self.table.num_rows, self.block_rows)
        for chunk in self.table.slice(rows.start, len(rows)).to_batches(max_chunksize=request.chunk_rows):
            yield chunk if request.columns is None else chosen(chunk, request.columns, "in-memory table")

    def describe(self) -> str:
        return f"table({self.table.num_rows} rows)"


class RangeSource(Source):
    """The numbers 0 to rows - 1, made when they are read.

    Without `shape`, as integers in column "id"; with it, as tensors of that shape in column "data".
    """

    fresh = True

    def __init__(self, rows: int, shape: tuple[int, ...] | None = None, block_rows: int | None = None) -> None:
        self.rows = rows
        self.shape = shape
        self.block_rows = block_rows or default_block_rows(rows)
        self._blocks = row_blocks(self.describe(), rows, self.block_rows)

    def blocks(self) -> Sequence[Block]:
        return self._blocks

    def schema(self) -> pa.Schema:
        return self._chunk(range(0)).schema

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        rows = rows_of_block(block, request, self.rows, self.block_rows)
        for first in range(rows.start, rows.stop, request.chunk_rows):
            chunk = self._chunk(range(first, min(first + request.chunk_rows, rows.stop)))
            yield chunk if request.columns is None else chosen(chunk, request.columns, self.describe())

    def _chunk(self, rows: range) -> Chunk:
        numbers = np.arange(rows.start, rows.stop, dtype=np.int64)
        if self.shape is None:
            return pa.RecordBatch.from_arrays([pa.array(numbers)], names=["id"])
        cells = np.empty((len(numbers), *self.shape), dtype=np.int64)
        cells[...] = numbers.reshape(-1, *(1 for _ in self.shape))
        return pa.RecordBatch.from_arrays([tensor_array(cells)], names=["data"])

    def describe(self) -> str:
        return f"range({self.rows})" if self.shape is None else f"range_tensor({self.rows}, shape={self.shape})"
