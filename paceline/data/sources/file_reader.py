"""Files that a function of the user's reads: one block per file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paceline.data.block import ReadRequest
from paceline.data.formats import conform
from paceline.data.sources.file_source import WholeFileSource, portions
from paceline.data.sources.lines import Piece, open_piece
from paceline.data.sources.read_tasks import chunks_from

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.sources.file_entry import FileEntry


class FileReaderSource(WholeFileSource):
    """`read_stream(file, path, **settings)` gives tables or frames."""

    native = False
    fresh = False  # the function may keep what it hands out

    def __init__(
        self, files: tuple[FileEntry, ...], read_stream: Callable[..., Any], settings: Mapping[str, Any], name: str
    ) -> None:
        super().__init__(files)
        self._read_stream = read_stream
        self._settings = dict(settings)
        self._name = name
        self._schema: pa.Schema | None = None

    def schema(self) -> pa.Schema:
        if self._schema is None:
            first = next((chunk for index in range(len(self.files)) for chunk in self._chunks(index)), None)
            self._schema = pa.schema([]) if first is None else first.schema
        return self._schema

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        schema, label = self.schema(), self.files[block].label
        yield from portions((conform(chunk, schema, label) for chunk in self._chunks(block)), request, label)

    def _chunks(self, index: int) -> Iterator[Chunk]:
        file = self.files[index]
        with open_piece(file, Piece(index, 0, file.size, True)) as stream:
            yield from chunks_from(lambda: self._read_stream(stream, file.path, **self._settings), file.label)

    def describe(self) -> str:
        return f"read_datasource({self._name})"
