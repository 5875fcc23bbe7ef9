"""Rows from Hugging Face datasets, through the Arrow tables that they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paceline.air.errors import ConfigError
from paceline.data.block import Block, ReadRequest, Source
from paceline.data.formats import concat, conform
from paceline.data.plain_types import plain_schema, plain_table
from paceline.data.plan import chosen, cut
from paceline.data.row_blocks import default_block_rows, row_blocks, rows_of_block

if TYPE_CHECKING:
    from paceline.data.block import Chunk

_CHUNK_BYTES = 64 * 2**20
"""Datasets of images have rows of a megabyte: a chunk of as many rows as usual would be too large."""
_STREAM_ROWS = 1000


class HuggingFaceSource(Source):
    """A `datasets.Dataset`: its rows stay in its memory-mapped files, and it travels by the names of these.

    Shuffled and selected datasets give their rows in that order; a format's choice of columns is respected.
    """

    def __init__(self, dataset: Any, block_rows: int | None = None) -> None:
        chosen_format = dataset.format
        _refuse_transform(chosen_format["type"])
        self.columns = tuple(dataset.column_names if chosen_format["output_all_columns"] else chosen_format["columns"])
        self.dataset = dataset.with_format("arrow")
        self.rows = len(dataset)
        self.block_rows = block_rows or default_block_rows(self.rows)
        self._blocks = row_blocks("Hugging Face dataset", self.rows, self.block_rows)

    def blocks(self) -> Sequence[Block]:
        return self._blocks

    def schema(self) -> pa.Schema:
        schema = plain_schema(self.dataset.features.arrow_schema)
        return pa.schema([schema.field(name) for name in self.columns])

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        rows = rows_of_block(block, request, self.rows, self.block_rows)
        portion = min(request.chunk_rows, self._rows_within_bytes())
        wanted = request.columns or self.columns
        for first in range(rows.start, rows.stop, portion):
            table = self.dataset[first : min(first + portion, rows.stop)]
            place = f"Hugging Face dataset, row {first}"
            chunk = concat(plain_table(table.select(self.columns)).to_batches())
            yield chosen(conform(chunk, self.schema(), place), wanted, place)

    def _rows_within_bytes(self) -> int:
        data = self.dataset.data
        return max(1, int(_CHUNK_BYTES * data.num_rows / data.nbytes)) if data.nbytes else self.block_rows

    def describe(self) -> str:
        return f"from_huggingface({self.rows} rows)"


class HuggingFaceStreamSource(Source):
    """A `datasets.IterableDataset`: one block, read from its beginning every time.

    Its order is its own. The number of rows is known after a pass; `materialize()` keeps the rows.
    """

    native = False  # maps of a streamed dataset run while it is read

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset.with_format("arrow")
        self._schema: pa.Schema | None = None
        if dataset.features is not None:
            self._schema = plain_schema(dataset.features.arrow_schema)

    def blocks(self) -> Sequence[Block]:
        return [Block("Hugging Face stream")]

    def schema(self) -> pa.Schema:
        if self._schema is None:
            first = next(self._chunks(_STREAM_ROWS), None)
            self._schema = pa.schema([]) if first is None else first.schema
        return self._schema

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        schema = self.schema()
        chunks = (conform(chunk, schema, "Hugging Face stream") for chunk in self._chunks(request.chunk_rows))
        for chunk in cut(chunks, request.start, request.stop):
            yield chunk if request.columns is None else chosen(chunk, request.columns, "Hugging Face stream")

    def _chunks(self, rows: int) -> Iterator[Chunk]:
        for table in self.dataset.iter(batch_size=min(rows, _STREAM_ROWS)):
            yield from plain_table(table).combine_chunks().to_batches()

    def describe(self) -> str:
        return "from_huggingface(stream)"


def _refuse_transform(format_type: str | None) -> None:
    if format_type == "custom":
        raise ConfigError(
            "from_huggingface: the dataset has a function set with set_transform or with_transform, which would not"
            " be applied. Give from_huggingface the dataset without it (reset_format()) and apply the function"
            " with map_batches."
        )
