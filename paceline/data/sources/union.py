"""Several sources, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paceline.air.errors import DataError
from paceline.data.block import Block, ReadRequest
from paceline.data.sources.combined import CombinedSource

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk
    from paceline.data.plan import Plan


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
