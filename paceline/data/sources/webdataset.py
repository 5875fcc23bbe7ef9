"""WebDataset shards: tar files in which files of the same name but for the ending make up one row.

`cat/0001.jpg` and `cat/0001.json` become the row with "__key__" "cat/0001" and columns "jpg" and "json".
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import DataError
from paceline.data.block import ReadRequest
from paceline.data.column_arrays import column_array
from paceline.data.formats import conform
from paceline.data.sources.file_entry import open_checked
from paceline.data.sources.file_source import CHUNK_BYTES, WholeFileSource, portions
from paceline.data.sources.images import IMAGE_EXTENSIONS, decode_image
from paceline.data.tensors import ragged_array

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.sources.file_entry import FileEntry

_KEY = "__key__"
_SAMPLE_ROWS = 256
_IMAGES = {extension.removeprefix(".") for extension in IMAGE_EXTENSIONS}


class WebDatasetSource(WholeFileSource):
    """With `decoder`: txt, cls, json, npy and images become values; everything else, or all without it, is bytes."""

    format = "webdataset"

    def __init__(self, files: tuple[FileEntry, ...], decoder: bool) -> None:
        super().__init__(files)
        self._decoder = decoder
        self._schema: pa.Schema | None = None

    def schema(self) -> pa.Schema:
        """As the first rows tell it."""
        if self._schema is None:
            self._schema = self._infer()
        return self._schema

    def _infer(self) -> pa.Schema:
        for index, file in enumerate(self.files):
            for rows in self._row_groups(index, _SAMPLE_ROWS):
                return _chunk(rows, file.label).schema
        return pa.schema([pa.field(_KEY, pa.string())])

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        yield from portions(self._decode(block, request.chunk_rows), request, self.files[block].label)

    def _decode(self, index: int, chunk_rows: int) -> Iterator[Chunk]:
        schema, label = self.schema(), self.files[index].label
        for rows in self._row_groups(index, chunk_rows):
            chunk = _chunk(rows, label)
            for name in schema.names:  # no row of this chunk has it
                if name not in chunk.schema.names:
                    chunk = chunk.append_column(name, pa.nulls(chunk.num_rows, schema.field(name).type))
            yield conform(chunk, schema, label)

    def _row_groups(self, index: int, most: int) -> Iterator[list[dict[str, Any]]]:
        rows: list[dict[str, Any]] = []
        size = 0
        for row, row_size in self._rows(self.files[index]):
            rows.append(row)
            size += row_size
            if len(rows) == most or size >= CHUNK_BYTES:
                yield rows
                rows, size = [], 0
        if rows:
            yield rows

    def _rows(self, file: FileEntry) -> Iterator[tuple[dict[str, Any], int]]:
        """The rows of a shard with their sizes. Files of one row lie next to each other in it."""
        row: dict[str, Any] = {}
        size = 0
        for path, content in _members(file):
            directory, slash, name = path.rpartition("/")
            stem, _, ending = name.partition(".")
            key = f"{directory}{slash}{stem}"
            if row and row[_KEY] != key:
                yield row, size
                row, size = {}, 0
            row.setdefault(_KEY, key)
            column = ending.lower()
            if column in row:
                raise DataError(f"{file.label}: {path} is in the archive twice.")
            row[column] = self._value(column, content, f"{file.label}, {path}")
            size += len(content)
        if row:
            yield row, size

    def _value(self, column: str, content: bytes, place: str) -> Any:
        kind = column.rpartition(".")[2]
        if not self._decoder:
            return content
        try:
            if kind in ("txt", "text"):
                return content.decode()
            if kind in ("cls", "cls2", "index"):
                return int(content)
            if kind == "json":
                return json.loads(content)
            if kind == "npy":
                return np.load(io.BytesIO(content), allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise DataError(f"{place} cannot be decoded as {kind}: {error}") from error
        return decode_image(content, place, None, None) if kind in _IMAGES else content


def _members(file: FileEntry) -> Iterator[tuple[str, bytes]]:
    """The regular files of an archive, as a stream; nothing is unpacked to disk."""
    with open_checked(file) as opened:
        try:
            with tarfile.open(fileobj=opened, mode="r|*") as archive:
                for member in archive:
                    name = member.name.removeprefix("./")
                    if not member.isreg() or name.rpartition("/")[2].startswith((".", "__")):
                        continue
                    content = archive.extractfile(member)
                    if content is not None and "." in name.rpartition("/")[2]:
                        yield name, content.read()
        except (tarfile.TarError, EOFError, OSError) as error:
            raise DataError(f"{file.label} is no readable tar archive: {error}") from error


def _chunk(rows: list[dict[str, Any]], label: str) -> Chunk:
    """Columns of arrays are ragged from the start: shapes may differ later on."""
    arrays = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        cells = [row.get(name) for row in rows]
        is_arrays = any(isinstance(cell, np.ndarray) for cell in cells)
        arrays[name] = ragged_array(cells) if is_arrays else column_array(cells, name, label)
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
