"""Sources that need no file: a table in memory, a range of numbers, and rows that are computed as a whole.

Sorted rows, groups and joins are computed at first need, and kept.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import DataError
from paceline.air.words import counted
from paceline.data.block import Block, Origin, ReadRequest, Source, default_block_rows, row_blocks, rows_of_block
from paceline.data.objects import packed, read_rows
from paceline.data.operations.native import no_such_column
from paceline.data.plan import chosen
from paceline.data.store import Indices, StoredSource, store, stored
from paceline.data.tensors import tensor_array

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.plan import Plan


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

    @property
    def known_schema(self) -> pa.Schema:
        return self.table.schema

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        rows = rows_of_block(block, request, self.table.num_rows, self.block_rows)
        for chunk in self.table.slice(rows.start, len(rows)).to_batches(max_chunksize=request.chunk_rows):
            yield chosen(chunk, request.columns, "in-memory table")

    def describe(self) -> str:
        return f"table({counted(self.table.num_rows, 'row')})"


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
            yield chosen(chunk, request.columns, self.describe())

    def _chunk(self, rows: range) -> Chunk:
        numbers = np.arange(rows.start, rows.stop, dtype=np.int64)
        if self.shape is None:
            return pa.RecordBatch.from_arrays([pa.array(numbers)], names=["id"])
        cells = np.empty((len(numbers), *self.shape), dtype=np.int64)
        cells[...] = numbers.reshape(-1, *(1 for _ in self.shape))
        return pa.RecordBatch.from_arrays([tensor_array(cells)], names=["data"])

    def describe(self) -> str:
        return f"range({self.rows})" if self.shape is None else f"range_tensor({self.rows}, shape={self.shape})"


class ComputedSource(Source):
    """Base: `children` is what it is computed from, let go of once that has been done.

    Several datasets (epochs, slices) may refer to one such source: it is computed once for all of them.
    """

    def __init__(self, children: tuple[Plan, ...]) -> None:
        self._children = children
        self._seeds = tuple(seed for child in children for seed in child.seeds())
        self._files = list(dict.fromkeys(file for child in children for file in child.input_files()))
        self._origin = Origin.of_all(children)
        self.worker_share = any(child.worker_share for child in children)
        self._result: StoredSource | None = None
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()

    @abstractmethod
    def _compute(self) -> StoredSource:
        """All rows of the result."""

    def _schema_before(self) -> pa.Schema | None:
        """The schema if it can be told without computing."""
        return None

    def _rows_before(self) -> int | None:
        """How many rows there will be, if that can be told without computing."""
        return None

    def resolved(self) -> StoredSource:
        with self._lock:
            if self._result is None:
                result = self._compute()
                result.left_out, result.made_with = self.skipped(), self.seeds()
                self._result, self._children = result, ()
            return self._result

    def schema(self) -> pa.Schema:
        with self._lock:
            schema = self._schema_before() if self._result is None else None
            return schema if schema is not None else self.resolved().schema()

    def blocks(self) -> Sequence[Block]:
        with self._lock:
            rows = self._rows_before() if self._result is None else None
            if rows is None:
                return self.resolved().blocks()
            return row_blocks(self.describe(), rows, default_block_rows(rows))

    def skipped(self) -> list[str]:
        if self._result is not None:
            return self._result.skipped()
        return [line for child in self._children for line in child.skipped()]

    def input_files(self) -> list[str]:
        return self._files

    def origin(self) -> Origin:
        return self._origin.then(self.describe())

    def seeds(self) -> tuple[int, ...]:
        return self._seeds

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        yield from self.resolved().read(block, request)


class KeptSource(ComputedSource):
    """The rows of a plan as they are, within reach."""

    def __init__(self, child: Plan) -> None:
        super().__init__((child,))

    def describe(self) -> str:
        return "materialize"

    def _compute(self) -> StoredSource:
        return stored(self._children[0])

    def _schema_before(self) -> pa.Schema:
        return self._children[0].schema()

    def _rows_before(self) -> int | None:
        return sum(self._children[0].row_counts()) if self._children[0].knows_counts else None


class SortedSource(KeptSource):
    """Sorted by Arrow: stable, nulls last. In memory are the key columns and a number per row, not the rows."""

    def __init__(self, child: Plan, keys: tuple[tuple[str, bool], ...], method: str = "sort") -> None:
        super().__init__(child)
        self._keys = keys
        """Columns, and whether each is to descend."""
        self._method = method
        """What the user called, for messages."""

    def describe(self) -> str:
        return f"{self._method}({', '.join(name for name, _ in self._keys)})"

    def _compute(self) -> StoredSource:
        rows = stored(self._children[0])
        order = sort_order(rows.table(), self._keys, self.describe())
        return store(rows.take_in_chunks(order), rows.schema())


def sort_order(table: pa.Table, keys: tuple[tuple[str, bool], ...], what: str) -> Indices:
    """The numbers of the rows, in sorted order."""
    import pyarrow.compute as pc  # its import takes as long as thousands of batches, and every dataset needs this file

    names = [name for name, _ in keys]
    columns = sortable(table, names, what)
    orders = [(name, "descending" if descending else "ascending") for name, descending in keys]
    order: Indices = pc.sort_indices(columns, sort_keys=orders).to_numpy().astype(np.int64)
    return order


def sortable(table: pa.Table, names: list[str], what: str) -> pa.Table:
    """The key columns, of types that Arrow orders."""
    columns = {}
    for name in names:
        if name not in table.column_names:
            raise DataError(f"{what}: {no_such_column(name, table.column_names)}")
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())
        if pa.types.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType):
            raise DataError(
                f"{what}: column {name!r} holds {column.type}, which has no order; use a column of plain values."
            )
        columns[name] = column
    return pa.table(columns)
