"""Datasources of users: reading one (a block per read task, or per file), and writing to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paceline.air.errors import ConfigError, DataError
from paceline.data.block import Block, BlockMetadata, ReadRequest, Source
from paceline.data.datasource.datasource import Datasink, TaskContext
from paceline.data.formats import conform, from_batch, from_rows
from paceline.data.read_arguments import blocks_wanted
from paceline.data.sources.file_source import WholeFileSource, portions
from paceline.data.sources.lines import ByteRange, open_range

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.dataset import Dataset
    from paceline.data.plan import Plan
    from paceline.data.sources.listed_file import ListedFile


_TASKS = 16
"""Asked for where the user leaves it open. Not by cores: a run restored on another machine needs the same blocks."""


def read_datasource(
    datasource: Any,
    *,
    parallelism: int = -1,
    ray_remote_args: Mapping[str, Any] | None = None,
    **read_args: Any,
) -> Dataset:
    """Rows of a `Datasource`: each of its read tasks is a block. Also takes a `paceline.data.block.Source`."""
    from paceline.data.dataset import Dataset
    from paceline.data.from_objects import refuse_ray_dataset

    refuse_ray_dataset(datasource, "read_datasource")
    parallelism = blocks_wanted(parallelism, ray_remote_args, read_args, "each worker reads its own share")
    if isinstance(datasource, Source):
        return Dataset(datasource)
    if hasattr(datasource, "source"):  # of files: a block is a file
        return Dataset(datasource.source(parallelism, **read_args))
    return Dataset(_of_tasks(datasource, _TASKS if parallelism == -1 else parallelism, read_args))


def _of_tasks(datasource: Any, parallelism: int, read_args: dict[str, Any]) -> Source:
    if hasattr(datasource, "create_reader"):
        tasks = datasource.create_reader(**read_args).get_read_tasks(parallelism)
    elif hasattr(datasource, "get_read_tasks"):
        tasks = datasource.get_read_tasks(parallelism)
    else:
        raise ConfigError(
            f"read_datasource: {type(datasource).__name__} has no method get_read_tasks(parallelism): derive it from "
            "paceline.data.datasource.Datasource."
        )
    if not tasks:
        raise ConfigError(f"read_datasource: {type(datasource).__name__} gave no read tasks; give at least one.")
    return ReadTaskSource(tasks, type(datasource).__name__)


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


class FileReaderSource(WholeFileSource):
    """`read_stream(file, path, **settings)` gives tables or frames."""

    native = False
    fresh = False  # the function may keep what it hands out

    def __init__(
        self, files: tuple[ListedFile, ...], read_stream: Callable[..., Any], settings: Mapping[str, Any], name: str
    ) -> None:
        super().__init__(files)
        self._read_stream = read_stream
        self._settings = dict(settings)
        self._name = name

    def _find_schema(self) -> pa.Schema:
        first = next((chunk for index in range(len(self.files)) for chunk in self._chunks(index)), None)
        return pa.schema([]) if first is None else first.schema

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        schema, label = self.schema(), self.files[block].label
        yield from portions((conform(chunk, schema, label) for chunk in self._chunks(block)), request, label)

    def _chunks(self, index: int) -> Iterator[Chunk]:
        file = self.files[index]
        with open_range(file, ByteRange(index, 0, file.size, True)) as stream:
            yield from chunks_from(lambda: self._read_stream(stream, file.path, **self._settings), file.label)

    def describe(self) -> str:
        return f"read_datasource({self._name})"


def write_to(plan: Plan, place: Any, write_args: dict[str, Any]) -> None:
    """Every block as tables; `on_write_failed` is called for what fails, which is raised after that."""
    if not callable(getattr(place, "write", None)):
        raise ConfigError(
            f"{type(place).__name__} has no method write(blocks, ctx): derive it from "
            "paceline.data.datasource.Datasink or Datasource."
        )
    results: list[Any] = []
    place.on_write_start(**write_args)
    try:
        # One block at a time: the object need not be safe for threads.
        for block in range(len(plan.blocks())):
            results.append(place.write(_tables(plan, block), TaskContext(block), **write_args))
        place.on_write_complete(results)
    except Exception as error:
        if isinstance(place, Datasink):
            place.on_write_failed(error)
        else:
            place.on_write_failed(results, error)
        raise


def _tables(plan: Plan, block: int) -> Iterator[pa.Table]:
    for chunk in plan.read(block, ReadRequest()):
        yield pa.Table.from_batches([chunk])
