"""Sources that are made of other plans: their base, and one plan after the other (union)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

from paceline.air.errors import DataError
from paceline.data.block import Block, ReadRequest, Source

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk
    from paceline.data.plan import Plan


class CombinedSource(Source):
    """Base: what it passes on from `children`, it passes on as it is."""

    def __init__(self, children: tuple[Plan, ...]) -> None:
        self.children = children

    @property
    def child(self) -> Plan:
        """The only one, or the first."""
        return self.children[0]

    @property
    def fresh(self) -> bool:  # type: ignore[override]
        return all(child.fresh for child in self.children)

    @property
    def native(self) -> bool:  # type: ignore[override]
        return all(child.native for child in self.children)

    @property
    def worker_share(self) -> bool:  # type: ignore[override]
        return any(child.worker_share for child in self.children)

    def skipped(self) -> list[str]:
        return [line for child in self.children for line in child.skipped()]

    def input_files(self) -> list[str]:
        return list(dict.fromkeys(file for child in self.children for file in child.input_files()))

    def seeds(self) -> tuple[int, ...]:
        return tuple(seed for child in self.children for seed in child.seeds())

    def resolved(self) -> Self:
        return self._over(tuple(child.resolved() for child in self.children))

    def for_epoch(self, epoch: int) -> Self:
        return self._over(tuple(child.for_epoch(epoch) for child in self.children))

    def _over(self, children: tuple[Plan, ...]) -> Self:
        """The same with other children; what has been found out is kept."""
        if all(new is old for new, old in zip(children, self.children, strict=True)):
            return self
        twin = copy.copy(self)
        twin.children = children
        return twin


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
