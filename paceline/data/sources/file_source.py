"""What the sources that read files have in common, and the simplest of them: files as bytes."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from paceline.air.errors import DataError
from paceline.data.block import Block, ReadRequest, Source
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

    @abstractmethod
    def files_at(self, block: int, start: int, rows: int) -> range:
        """Which files these rows of a block come from: one that has them all, or one for each row."""

    def input_files(self) -> list[str]:
        return [file.label for file in self.files]

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
        wanted = chunk if request.columns is None else chosen(chunk, request.columns, place)
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

    def schema(self) -> pa.Schema:
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
        return chunk if request.columns is None else chosen(chunk, request.columns, paths[0])
