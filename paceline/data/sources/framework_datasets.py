"""Rows from Hugging Face datasets, through their Arrow tables, and from torch datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paceline.air.errors import ConfigError, DataError
from paceline.air.words import counted
from paceline.data.block import Block, ReadRequest, Source, default_block_rows, row_blocks, rows_of_block
from paceline.data.column_arrays import plain_schema, plain_table
from paceline.data.formats import concat, conform, from_rows
from paceline.data.plan import chosen, cut

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
        return f"from_huggingface({counted(self.rows, 'row')})"


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
            yield chosen(chunk, request.columns, "Hugging Face stream")

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


_BLOCK_ROWS = 1024
_CHUNK_ROWS = 256
"""Items may be large (images), and nothing tells how large: chunks stay small."""
_SCHEMA_ROWS = 16


class TorchDatasetSource(Source):
    """Items that are dicts give columns by their keys, tuples "item_0", "item_1", ..., all else one column "item"."""

    fresh = True  # stacking items copies them
    native = False  # __getitem__ is the user's code

    def __init__(self, dataset: Any, block_rows: int | None = None) -> None:
        self.dataset = dataset
        self.rows = len(dataset)
        self.block_rows = block_rows or _BLOCK_ROWS
        self._blocks = row_blocks(self._name, self.rows, self.block_rows, unit="items")
        self._schema: pa.Schema | None = None

    def blocks(self) -> Sequence[Block]:
        return self._blocks

    def schema(self) -> pa.Schema:
        if self._schema is None:
            self._schema = self._chunk(range(min(self.rows, _SCHEMA_ROWS))).schema
        return self._schema

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        rows = rows_of_block(block, request, self.rows, self.block_rows)
        portion = min(request.chunk_rows, _CHUNK_ROWS)
        for first in range(rows.start, rows.stop, portion):
            indices = range(first, min(first + portion, rows.stop))
            place = f"{self._name}, items {indices.start} to {indices.stop - 1}"
            chunk = conform(self._chunk(indices), self.schema(), place)
            yield chosen(chunk, request.columns, place)

    def describe(self) -> str:
        return f"from_torch({self._name})"

    @property
    def _name(self) -> str:
        return type(self.dataset).__name__

    def _chunk(self, indices: range) -> Chunk:
        place = f"{self._name}, items {indices.start} to {indices.stop - 1}"
        items = self._items(indices)
        for index, item in zip(indices, items, strict=False):
            if isinstance(item, tuple) and isinstance(items[0], tuple) and len(item) != len(items[0]):
                raise DataError(
                    f"{self._name}: item {index} has {len(item)} values and item {indices.start} has {len(items[0])}; "
                    "all must have as many, since each becomes a column."
                )
        return from_rows([row_of(item) for item in items], place)

    def _items(self, indices: range) -> Sequence[Any]:
        index = indices.start
        try:
            if hasattr(self.dataset, "__getitems__"):  # torch's protocol for many items at once
                return list(self.dataset.__getitems__(list(indices)))
            items = []
            for index in indices:
                items.append(self.dataset[index])
            return items
        except Exception as error:
            raise DataError(f"{self._name}: item {index} cannot be read: {type(error).__name__}: {error}") from error


def row_of(item: Any) -> dict[str, Any]:
    """An item as a row."""
    if isinstance(item, Mapping):
        return dict(item)
    if isinstance(item, tuple):
        names = getattr(item, "_fields", None) or [f"item_{position}" for position in range(len(item))]
        return dict(zip(names, item, strict=True))
    return {"item": item}
