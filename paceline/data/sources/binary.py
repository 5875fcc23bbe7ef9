"""Files as they are: one row per file, its content in a column "bytes"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from paceline.data.block import ReadRequest
from paceline.data.plan import chosen
from paceline.data.sources.file_source import CHUNK_BYTES, FileGroupSource, read_bytes

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.sources.file_entry import FileEntry


class BinarySource(FileGroupSource):
    """`include_paths`: also a column "path"."""

    format = "binary_files"

    def __init__(self, files: tuple[FileEntry, ...], parallelism: int, include_paths: bool) -> None:
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
