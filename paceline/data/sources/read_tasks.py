"""Rows that functions of the user's give: one block per read task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paceline.air.errors import DataError
from paceline.data.block import Block, BlockMetadata, ReadRequest, Source
from paceline.data.formats import conform, from_batch, from_rows
from paceline.data.sources.file_source import portions

if TYPE_CHECKING:
    from paceline.data.block import Chunk


class ReadTaskSource(Source):
    """Each task is called again whenever its block is read, and must give the same rows each time."""

    native = False

    def __init__(self, tasks: Sequence[Any], name: str) -> None:
        self._tasks = tuple(tasks)
        self._name = name
        known = [_metadata(task) for task in self._tasks]
        self._blocks = [
            Block(f"{name}, task {number}", metadata.num_rows, metadata.size_bytes)
            for number, metadata in enumerate(known)
        ]
        self._files = [file for metadata in known for file in metadata.input_files or ()]
        schemas = (getattr(task, "schema", None) or data.schema for task, data in zip(self._tasks, known, strict=True))
        self._schema = next((schema for schema in schemas if isinstance(schema, pa.Schema)), None)

    def blocks(self) -> Sequence[Block]:
        return self._blocks

    def schema(self) -> pa.Schema:
        """As a task says it, or as the first rows have it."""
        if self._schema is None:
            parts = (chunk for block in range(len(self._tasks)) for chunk in self._parts(block))
            first = next(parts, None)
            self._schema = pa.schema([]) if first is None else first.schema
        return self._schema

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        schema, name = self.schema(), self._blocks[block].name
        yield from portions((conform(part, schema, name) for part in self._counted(block)), request, name)

    def _counted(self, block: int) -> Iterator[Chunk]:
        """Positions in the data rest on the counts, so a wrong one must not pass."""
        expected, rows = self._blocks[block].rows, 0
        for part in self._parts(block):
            rows += part.num_rows
            if expected is not None and rows > expected:
                break
            yield part
        if expected is not None and rows != expected:
            raise DataError(
                f"{self._blocks[block].name} gave {'more than ' if rows > expected else ''}{min(rows, expected)} rows,"
                f" but its metadata says num_rows={expected}. Give the right number, or None."
            )

    def _parts(self, block: int) -> Iterator[Chunk]:
        yield from chunks_from(self._tasks[block], self._blocks[block].name)

    def input_files(self) -> list[str]:
        return self._files

    def describe(self) -> str:
        return f"read_datasource({self._name})"


def chunks_from(function: Callable[[], Iterable[Any]], name: str) -> Iterator[Chunk]:
    """What a function of the user's gives: one block, or an iterable of them."""
    try:
        given = function()
        parts = iter([given] if _is_block(given) else given)
    except Exception as error:
        raise _failed(name, error) from error
    while True:
        try:
            part = next(parts)
        except StopIteration:
            return
        except Exception as error:
            raise _failed(name, error) from error
        yield from_rows(part, name) if isinstance(part, list) else from_batch(part, name)


def _is_block(value: object) -> bool:
    return hasattr(value, "columns") or isinstance(value, dict)


def _failed(name: str, error: Exception) -> DataError:
    return DataError(f"{name} cannot be read: {type(error).__name__}: {error}")


def _metadata(task: Any) -> Any:
    get = getattr(task, "get_metadata", None)
    return get() if callable(get) else getattr(task, "metadata", None) or BlockMetadata()
