"""Small helpers for the tests of operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paceline.data.block import ReadRequest, Source
from paceline.data.dataset_transforms import Transforms
from paceline.data.sources.computed import TableSource

if TYPE_CHECKING:
    from paceline.data.block import Chunk


def dataset(rows: int = 10, block_rows: int = 6) -> Transforms:
    table = pa.table({"a": range(rows), "b": [float(i) for i in range(rows)], "c": [f"c{i % 3}" for i in range(rows)]})
    return Transforms(TableSource(table, block_rows))


def chunks(ds: Transforms, request: ReadRequest | None = None) -> list[Chunk]:
    plan = ds.plan
    return [chunk for block in range(len(plan.blocks())) for chunk in plan.read(block, request or ReadRequest())]


def rows(ds: Transforms) -> list[dict[str, Any]]:
    return [row for chunk in chunks(ds) for row in chunk.to_pylist()]


def column(ds: Transforms, name: str) -> list[Any]:
    return [value for chunk in chunks(ds) for value in chunk.column(name).to_pylist()]


class WatchedSource(Source):
    """A table whose reads are remembered."""

    def __init__(self, table: pa.Table, block_rows: int) -> None:
        self._table = TableSource(table, block_rows)
        self.requests: list[ReadRequest] = []

    def blocks(self) -> Any:
        return self._table.blocks()

    def schema(self) -> pa.Schema:
        return self._table.schema()

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        self.requests.append(request)
        return self._table.read(block, request)


def watched() -> tuple[WatchedSource, Transforms]:
    source = WatchedSource(pa.table({name: [1, 2, 3] for name in "abcd"}), 3)
    return source, Transforms(source)
