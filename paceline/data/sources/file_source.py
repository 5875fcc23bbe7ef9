"""What the sources that read files have in common, and the simplest of them: files as bytes.

At the end, columns that are in the names of directories: `sales/year=2024/month=3/part-0.parquet`. A column whose name
is also in the files comes from the files.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paceline.air.errors import DataError
from paceline.data.block import Block, Origin, ReadRequest, Source
from paceline.data.datasource.partitioning import Partitioning, PartitionStyle, PathPartitionParser
from paceline.data.plan import chosen, cut
from paceline.data.sources.listed_file import DETECT, ListedFile, open_checked

if TYPE_CHECKING:
    from paceline.data.block import Chunk

CHUNK_BYTES = 32 << 20
"""Where rows are large (images, documents), a chunk ends after about this much."""
_FILES_PER_BLOCK = 128
_BYTES_PER_BLOCK = 64 << 20


class FileSource(Source):
    """A listing of files. Decoding makes new memory, so what is read is the reader's own."""

    fresh = True
    format = ""
    """For messages: "csv"."""

    def __init__(self, files: tuple[ListedFile, ...]) -> None:
        self.files = files
        self._schema: pa.Schema | None = None

    def schema(self) -> pa.Schema:
        if self._schema is None:
            self._schema = self._find_schema()
        return self._schema

    @abstractmethod
    def _find_schema(self) -> pa.Schema:
        """Names and types of the columns; found out once."""

    @abstractmethod
    def files_at(self, block: int, start: int, rows: int) -> range:
        """Which files these rows of a block come from: one that has them all, or one for each row."""

    def input_files(self) -> list[str]:
        return [file.label for file in self.files]

    def origin(self) -> Origin:
        versions = (f"{file.label} {file.size} {file.stamp}" for file in self.files)
        return Origin(tuple(versions), (f"read_{self.format}",))

    def describe(self) -> str:
        return f"read_{self.format}({self.files[0].label}{', ...' if len(self.files) > 1 else ''})"


class WholeFileSource(FileSource):
    """One block per file."""

    def __init__(self, files: tuple[ListedFile, ...]) -> None:
        super().__init__(files)
        self._blocks = [Block(file.label) for file in files]

    def blocks(self) -> Sequence[Block]:
        return self._blocks

    def files_at(self, block: int, start: int, rows: int) -> range:
        return one_file(block)


class FileGroupSource(FileSource):
    """One row per file, a block for a handful of files next to each other."""

    def __init__(self, files: tuple[ListedFile, ...], parallelism: int) -> None:
        super().__init__(files)
        self._groups = group_files(files, parallelism)
        self._blocks = [_group_block(group) for group in self._groups]
        self._firsts = list(itertools.accumulate(map(len, self._groups), initial=0))

    def blocks(self) -> Sequence[Block]:
        return self._blocks

    def files_at(self, block: int, start: int, rows: int) -> range:
        first = self._firsts[block] + start
        return range(first, first + rows)

    def _wanted(self, block: int, request: ReadRequest) -> tuple[ListedFile, ...]:
        return self._groups[block][request.start : request.stop]


def one_file(index: int) -> range:
    return range(index, index + 1)


def group_files(files: tuple[ListedFile, ...], parallelism: int) -> list[tuple[ListedFile, ...]]:
    """Neighbours together: at most 128 files and about 64 MB in a group, fewer if more blocks are wanted."""
    most = _FILES_PER_BLOCK if parallelism == -1 else min(_FILES_PER_BLOCK, -(-len(files) // parallelism))
    groups: list[tuple[ListedFile, ...]] = []
    current: list[ListedFile] = []
    size = 0
    for file in files:
        if current and (len(current) >= most or size + file.size > _BYTES_PER_BLOCK):
            groups.append(tuple(current))
            current, size = [], 0
        current.append(file)
        size += file.size
    return [*groups, tuple(current)]


def _group_block(group: tuple[ListedFile, ...]) -> Block:
    name = group[0].label if len(group) == 1 else f"{group[0].label} to {group[-1].label}"
    return Block(name, rows=len(group), size_bytes=sum(file.size for file in group))


def read_bytes(file: ListedFile) -> bytes:
    """All of a file; decompressed only if the user said how."""
    codec = None if file.compression == DETECT else file.compression
    with open_checked(file) as opened:
        try:
            return bytes((pa.CompressedInputStream(opened, codec) if codec else opened).read())
        except OSError as error:
            raise DataError(f"{file.label} cannot be read: {error}") from error


def portions(chunks: Iterator[Chunk], request: ReadRequest, place: str) -> Iterator[Chunk]:
    """Of a block's chunks from its first row on, what was asked for: these rows and columns, in chunks this large."""
    for chunk in cut(chunks, request.start, request.stop):
        wanted = chosen(chunk, request.columns, place)
        for offset in range(0, wanted.num_rows, request.chunk_rows):
            yield wanted.slice(offset, request.chunk_rows)


def empty_chunk(schema: pa.Schema) -> Chunk:
    """No rows, these columns. (`pa.array` would import pandas, a quarter of a second for nothing.)"""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def even_ranges(total: int, count: int) -> list[tuple[int, int]]:
    """0 to total in this many ranges of about the same length."""
    edges = [total * index // count for index in range(count + 1)]
    return list(itertools.pairwise(edges))


class BinarySource(FileGroupSource):
    """`include_paths`: also a column "path"."""

    format = "binary_files"

    def __init__(self, files: tuple[ListedFile, ...], parallelism: int, include_paths: bool) -> None:
        super().__init__(files, parallelism)
        self._include_paths = include_paths

    def _find_schema(self) -> pa.Schema:
        fields = [pa.field("bytes", pa.binary())]
        return pa.schema([*fields, pa.field("path", pa.string())] if self._include_paths else fields)

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        with_content = request.columns is None or "bytes" in request.columns
        contents: list[bytes] = []
        paths: list[str] = []
        for file in self._wanted(block, request):
            contents.append(read_bytes(file) if with_content else b"")
            paths.append(file.label)
            if len(contents) == request.chunk_rows or sum(map(len, contents)) >= CHUNK_BYTES:
                yield self._chunk(contents, paths, request)
                contents, paths = [], []
        if contents:
            yield self._chunk(contents, paths, request)

    def _chunk(self, contents: list[bytes], paths: list[str], request: ReadRequest) -> Chunk:
        columns = [pa.array(contents, pa.binary())]
        if self._include_paths:
            columns.append(pa.array(paths, pa.string()))
        chunk = pa.RecordBatch.from_arrays(columns, schema=self.schema())
        return chosen(chunk, request.columns, paths[0])


_ARROW_TYPES: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
_HIVE = Partitioning("hive")
PATH_COLUMN = "path"


@dataclass(frozen=True)
class Partitions:
    """The columns, and for each file their values."""

    fields: tuple[pa.Field, ...] = ()
    values: tuple[tuple[Any, ...], ...] = ()

    @classmethod
    def below(cls, files: Sequence[ListedFile], partitioning: Partitioning = _HIVE) -> Partitions:
        """Only directories below what the user gave count. Whole numbers become int64, other values strings."""
        if partitioning.base_dir is None:
            parser = PathPartitionParser(partitioning)
            found = [parser.of_directories(file.below.split("/")[:-1], file.label) for file in files]
            return cls._of(files, found, partitioning, infer=True)
        return cls.anywhere(files, partitioning, infer=True)

    @classmethod
    def anywhere(cls, files: Sequence[ListedFile], partitioning: Partitioning, *, infer: bool = False) -> Partitions:
        """All directories of a path count, or those below `base_dir`."""
        parser = PathPartitionParser(partitioning)
        levels_below = partitioning.style is PartitionStyle.DIRECTORY and partitioning.base_dir is None
        found = [
            # Without a base directory, the levels are meant to be those below the given one.
            parser.of_directories(file.below.split("/")[:-1], file.label) if levels_below and file.below
            else parser(file.path)
            for file in files
        ]  # fmt: skip
        return cls._of(files, found, partitioning, infer)

    @classmethod
    def _of(
        cls, files: Sequence[ListedFile], found: list[dict[str, Any]], partitioning: Partitioning, infer: bool
    ) -> Partitions:
        names = list(found[0])
        for file, values in zip(files, found, strict=True):
            if values.keys() != found[0].keys():
                raise DataError(
                    f"{files[0].label} and {file.label} differ in what their directories name: "
                    f"{names or 'nothing'} and {list(values) or 'nothing'}. Read them as separate datasets, or pass "
                    "partitioning=None to leave these columns out."
                )
        fields, columns = [], []
        for name in names:
            kind = (partitioning.field_types or {}).get(name)
            column = [values[name] for values in found]
            typed = _inferred(column) if infer and kind is None else (column, _ARROW_TYPES[kind or str])
            fields.append(pa.field(name, typed[1]))
            columns.append(typed[0])
        return cls(tuple(fields), tuple(zip(*columns, strict=True)) if columns else ())

    def with_paths(self, files: Sequence[ListedFile]) -> Partitions:
        """And a column with the path of the file."""
        values = self.values or ((),) * len(files)
        return Partitions(
            (*self.fields, pa.field(PATH_COLUMN, pa.string())),
            tuple((*row, file.label) for row, file in zip(values, files, strict=True)),
        )

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.fields]

    def without(self, stored: Sequence[str]) -> Partitions:
        """Without the columns that the files hold themselves."""
        kept = [index for index, field in enumerate(self.fields) if field.name not in stored]
        values = tuple(tuple(row[index] for index in kept) for row in self.values) if kept else ()
        return Partitions(tuple(self.fields[index] for index in kept), values)

    def add_to(self, chunk: Chunk, files: range, names: Sequence[str]) -> Chunk:
        """The chunk with those of these columns that are among `names`; its rows are of one file, or one of each."""
        arrays, fields = list(chunk.columns), list(chunk.schema)
        for index, field in enumerate(self.fields):
            if field.name in names:
                fields.append(field)
                arrays.append(self._column(index, field, files, chunk.num_rows))
        if not arrays:
            return chunk
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _column(self, index: int, field: pa.Field, files: range, rows: int) -> pa.Array:
        if len(files) == 1:
            return pa.repeat(pa.scalar(self.values[files[0]][index], field.type), rows)
        return pa.array([self.values[file][index] for file in files], field.type)


class PartitionedSource(Source):
    """The rows of a source of files, with these columns."""

    def __init__(self, source: FileSource, partitions: Partitions) -> None:
        self._source = source
        self._partitions = partitions
        self._added: Partitions | None = None
        self.fresh = source.fresh
        self.native = source.native

    def blocks(self) -> Sequence[Block]:
        return self._source.blocks()

    def schema(self) -> pa.Schema:
        return pa.schema([*self._source.schema(), *self._new_columns().fields])

    def _new_columns(self) -> Partitions:
        if self._added is None:
            self._added = self._partitions.without(self._source.schema().names)
        return self._added

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        partitions = self._new_columns()
        inner, added = request, partitions.names
        if request.columns is not None:
            added = [name for name in partitions.names if name in request.columns]
            inner = replace(request, columns=tuple(name for name in request.columns if name not in added))
        row = request.start
        for chunk in self._source.read(block, inner):
            files = self._source.files_at(block, row, chunk.num_rows)
            row += chunk.num_rows
            whole = partitions.add_to(chunk, files, added)
            yield chosen(whole, request.columns, self.describe())

    def skipped(self) -> list[str]:
        return self._source.skipped()

    def input_files(self) -> list[str]:
        return self._source.input_files()

    def origin(self) -> Origin:
        return self._source.origin()

    def describe(self) -> str:
        return self._source.describe()


def _inferred(values: list[str | None]) -> tuple[list[Any], pa.DataType]:
    try:
        numbers = [None if value is None else int(value) for value in values]
    except ValueError:
        return list(values), pa.string()
    exact = all(value is None or str(number) == value for value, number in zip(values, numbers, strict=True))
    if exact and all(number is None or -(2**63) <= number < 2**63 for number in numbers):
        return list(numbers), pa.int64()
    return list(values), pa.string()  # "007" is a name, not a number
