"""numpy's own files: .npy as a column "data", .npz with one column per array.

Rows run along the first axis. Of an .npy file just the wanted rows are read. Arrays of Python objects are
refused: loading them can run code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import DataError
from paceline.data.block import Block, ReadRequest
from paceline.data.formats import conform, from_batch
from paceline.data.plan import chosen
from paceline.data.sources.file_source import FileSource, even_ranges, one_file, portions
from paceline.data.sources.listed_file import ListedFile, open_checked
from paceline.data.sources.listing import LISTING_THREADS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paceline.data.block import Chunk

_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class _Header:
    """What the first bytes of an .npy file say."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_columns: bool
    """Fortran order: rows do not lie next to each other."""
    offset: int

    @property
    def row_bytes(self) -> int:
        return int(self.dtype.itemsize) * math.prod(self.shape[1:])


@dataclass(frozen=True)
class _Slice:
    """Rows of a file; without a header: all of an archive."""

    file: int
    header: _Header | None
    start: int = 0
    stop: int = 0


class NumpySource(FileSource):
    """Large .npy files are several blocks, an .npz file is one."""

    format = "numpy"

    def __init__(self, files: tuple[ListedFile, ...], parallelism: int) -> None:
        super().__init__(files)
        self._parallelism = parallelism
        self._slices: tuple[_Slice, ...] | None = None

    def blocks(self) -> Sequence[Block]:
        return [self._block(piece) for piece in self._cut_files()]

    def files_at(self, block: int, start: int, rows: int) -> range:
        return one_file(self._cut_files()[block].file)

    def _cut_files(self) -> tuple[_Slice, ...]:
        if self._slices is None:
            with ThreadPoolExecutor(min(LISTING_THREADS, len(self.files))) as pool:
                headers = list(pool.map(_read_header, self.files))
            size = _BLOCK_BYTES
            if self._parallelism != -1:
                size = min(size, -(-sum(file.size for file in self.files) // self._parallelism))
            pieces = (_cut(index, header, size) for index, header in enumerate(headers))
            self._slices = tuple(piece for some in pieces for piece in some)
        return self._slices

    def _block(self, piece: _Slice) -> Block:
        label = self.files[piece.file].label
        if piece.header is None:
            return Block(label)
        rows = piece.stop - piece.start
        return Block(f"{label}, rows {piece.start:,} to {piece.stop:,}", rows, rows * piece.header.row_bytes)

    def _find_schema(self) -> pa.Schema:
        header = _read_header(self.files[0])
        if header is None:
            return _read_npz(self.files[0]).schema
        empty = np.empty((0, *header.shape[1:]), header.dtype)
        return from_batch({"data": empty}, self.files[0].label).schema

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        piece = self._cut_files()[block]
        file = self.files[piece.file]
        if piece.header is None:
            chunk = conform(_read_npz(file), self.schema(), file.label)
            yield from portions(iter([chunk]), request, file.label)
        elif piece.header.by_columns:
            with open_checked(file) as opened:
                values = np.load(opened, allow_pickle=False)
            yield from portions(iter([self._chunk(values, file)]), request, file.label)
        else:
            yield from self._read_rows(file, piece.header, piece, request)

    def _read_rows(self, file: ListedFile, header: _Header, piece: _Slice, request: ReadRequest) -> Iterator[Chunk]:
        begin, end, _ = slice(request.start, request.stop).indices(piece.stop - piece.start)
        row_bytes = header.row_bytes
        with open_checked(file, ranges=True) as opened:
            for start in range(piece.start + begin, piece.start + end, request.chunk_rows):
                rows = min(request.chunk_rows, piece.start + end - start)
                content = opened.read_at(rows * row_bytes, header.offset + start * row_bytes)
                if len(content) < rows * row_bytes:
                    raise DataError(f"{file.label} ends before row {start + rows:,}: it is not complete.")
                values = np.frombuffer(content, header.dtype).reshape(rows, *header.shape[1:])
                chunk = self._chunk(values, file)
                yield chosen(chunk, request.columns, file.label)

    def _chunk(self, values: NDArray[Any], file: ListedFile) -> Chunk:
        return conform(from_batch({"data": values}, file.label), self.schema(), file.label)


def _cut(index: int, header: _Header | None, size: int) -> list[_Slice]:
    if header is None:
        return [_Slice(index, None)]
    if header.by_columns:
        return [_Slice(index, header, 0, header.shape[0])]
    rows = header.shape[0]
    count = max(1, min(rows, -(-rows * header.row_bytes // size)))
    return [_Slice(index, header, start, stop) for start, stop in even_ranges(rows, count)]


def _read_header(file: ListedFile) -> _Header | None:
    """None: the file is an archive (.npz)."""
    with open_checked(file, ranges=True) as opened:
        if opened.read(4) == b"PK\x03\x04":
            return None
        opened.seek(0)
        try:
            version = np.lib.format.read_magic(opened)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, by_columns, dtype = read(opened)
        except (ValueError, OSError) as error:
            raise DataError(f"{file.label} is no readable .npy or .npz file: {error}") from error
        offset = opened.tell()
    if dtype.hasobject:
        raise _has_objects(file.label)
    if not shape:
        raise DataError(
            f"{file.label} holds a single value; an array with one row per entry of its first axis is needed."
        )
    return _Header(shape, dtype, by_columns and len(shape) > 1, offset)


def _read_npz(file: ListedFile) -> Chunk:
    with open_checked(file) as opened:
        try:
            with np.load(opened, allow_pickle=False) as archive:
                columns = {name: archive[name] for name in archive.files}
        except Exception as error:  # zipfile and zlib have error classes of their own
            if "allow_pickle" in str(error):
                raise _has_objects(file.label) from error
            raise DataError(f"{file.label} is no readable .npz file: {error}") from error
    return from_batch(columns, file.label)


def _has_objects(label: str) -> DataError:
    return DataError(
        f"{label} holds Python objects, which are not loaded because that can run code. Save it with a plain dtype."
    )
