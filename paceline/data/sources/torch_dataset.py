"""Rows from a map-style torch Dataset, asked for item by item when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.air.errors import DataError
from paceline.data.block import Block, ReadRequest, Source
from paceline.data.formats import conform, from_rows
from paceline.data.plan import chosen
from paceline.data.row_blocks import row_blocks, rows_of_block

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk

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
            yield chunk if request.columns is None else chosen(chunk, request.columns, place)

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
