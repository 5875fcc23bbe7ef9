"""WebDataset shards: tar files in which files of the same name but for the ending make up one row.

`cat/0001.jpg` and `cat/0001.json` become the row with "__key__" "cat/0001" and columns "jpg" and "json". Writing is the
same the other way round.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import ConfigError, DataError
from paceline.data.block import ReadRequest
from paceline.data.column_arrays import column_array
from paceline.data.formats import conform, to_rows
from paceline.data.sources.file_source import CHUNK_BYTES, WholeFileSource, portions
from paceline.data.sources.images import IMAGE_EXTENSIONS, check_pillow, decode_image
from paceline.data.sources.listed_file import open_checked
from paceline.data.tensors import ragged_array
from paceline.data.write_formats import FileFormat

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.sources.listed_file import ListedFile


_KEY = "__key__"
_SAMPLE_ROWS = 256
_IMAGES = {extension.removeprefix(".") for extension in IMAGE_EXTENSIONS}


class WebDatasetSource(WholeFileSource):
    """With `decoder`: txt, cls, json, npy and images become values; everything else, or all without it, is bytes."""

    format = "webdataset"

    def __init__(self, files: tuple[ListedFile, ...], decoder: bool) -> None:
        super().__init__(files)
        self._decoder = decoder

    def _find_schema(self) -> pa.Schema:
        """As the first rows tell it."""
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

    def _rows(self, file: ListedFile) -> Iterator[tuple[dict[str, Any], int]]:
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


def _members(file: ListedFile) -> Iterator[tuple[str, bytes]]:
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


_PILLOW_NAMES = {"jpg": "jpeg", "tif": "tiff"}
_NUMBERS_AS_TEXT = ("cls", "cls2", "index", "id", "count", "inx")


class WebDatasetFormat(FileFormat):
    """Values that are null have no file. Rows without a column "__key__" are numbered within their archive."""

    name = "webdataset"
    extension = "tar"

    def __init__(self, encoder: bool | Callable[[dict[str, Any]], Mapping[str, Any]] | None) -> None:
        if not isinstance(encoder, bool) and encoder is not None and not callable(encoder):
            raise ConfigError(f"encoder={encoder!r}: give True, False, or a function from a row to a row.")
        self._encoder = encoder

    def write(self, path: Path, schema: pa.Schema, chunks: Iterator[Chunk]) -> None:
        number = 0
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
            for chunk in chunks:
                for row in to_rows(chunk):
                    key = row.pop(_KEY, None) or f"{number:06d}"
                    for column, content in self._contents(row, key):
                        _add(archive, f"{key}.{column}", content)
                    number += 1

    def _contents(self, row: dict[str, Any], key: str) -> Iterator[tuple[str, bytes]]:
        encoded = self._encoder(row) if callable(self._encoder) else row
        for column, value in encoded.items():
            if value is None or column.startswith("__"):
                continue
            yield column, _encoded(column, value, key) if self._encoder is True else _plain(column, value, key)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o444
    archive.addfile(member, io.BytesIO(content))


def _encoded(column: str, value: Any, key: str) -> bytes:
    kind = column.rpartition(".")[2].lower()
    if isinstance(value, bytes | str):
        return _plain(column, value, key)
    if kind == "json":
        return json.dumps(value, default=_as_list).encode()
    if kind == "npy":
        content = io.BytesIO()
        np.save(content, np.asarray(value), allow_pickle=False)
        return content.getvalue()
    if kind in _IMAGES:
        return _image(kind, value, key)
    if kind in ("txt", "text", "transcript", *_NUMBERS_AS_TEXT) and isinstance(value, bool | int | float):
        return str(value).encode()
    return _plain(column, value, key)


def _image(kind: str, value: Any, key: str) -> bytes:
    check_pillow()
    import PIL.Image

    content = io.BytesIO()
    try:
        PIL.Image.fromarray(np.asarray(value)).save(content, format=_PILLOW_NAMES.get(kind, kind))
    except (TypeError, ValueError, OSError, KeyError) as error:
        raise DataError(f"write_webdataset: {key}.{kind} cannot be encoded as an image: {error}") from error
    return content.getvalue()


def _plain(column: str, value: Any, key: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise DataError(
        f"write_webdataset: column {column!r} of row {key!r} holds {type(value).__name__}, which has no encoding under "
        "that name. Rename the column to txt, cls, json, npy or png, or pass encoder=function that returns bytes."
    )


def _as_list(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
