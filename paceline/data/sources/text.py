"""Text files: one row per line, in a column "text"."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.errors import ConfigError, DataError
from paceline.data.block import Block, ReadRequest
from paceline.data.sources.file_source import FileSource, one_file, portions
from paceline.data.sources.lines import (
    Piece,
    cut_files,
    open_piece,
    piece_block,
    read_parts,
    splits_at_newlines,
    whole_lines,
)

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.sources.file_entry import FileEntry

_SCHEMA = pa.schema([pa.field("text", pa.string())])
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextSource(FileSource):
    """Lines end with \\n or \\r\\n, which is not part of the text."""

    format = "text"

    def __init__(self, files: tuple[FileEntry, ...], parallelism: int, encoding: str, drop_empty_lines: bool) -> None:
        super().__init__(files)
        try:
            self._encoding = codecs.lookup(encoding).name
        except LookupError as error:
            raise ConfigError(f"encoding={encoding!r}: there is no such encoding; for example use 'utf-8'.") from error
        self._drop_empty_lines = drop_empty_lines
        self._pieces = cut_files(files, parallelism, splittable=splits_at_newlines(self._encoding))
        self._blocks = [piece_block(files, piece) for piece in self._pieces]

    def blocks(self) -> Sequence[Block]:
        return self._blocks

    def files_at(self, block: int, start: int, rows: int) -> range:
        return one_file(self._pieces[block].file)

    def schema(self) -> pa.Schema:
        return _SCHEMA

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        piece = self._pieces[block]
        yield from portions(self._decode(piece), request, self.files[piece.file].label)

    def _decode(self, piece: Piece) -> Iterator[Chunk]:
        name = piece_block(self.files, piece).name
        with open_piece(self.files[piece.file], piece) as stream:
            parts = read_parts(stream, name)
            if self._encoding != "utf-8":
                parts = _as_utf8(parts, self._encoding, name)
            for number, buffer in enumerate(whole_lines(parts)):
                first = number == 0 and piece.start == 0
                lines = _lines(buffer.removeprefix(_BYTE_ORDER_MARK) if first else buffer, name)
                if self._drop_empty_lines:
                    lines = lines.filter(pc.invert(pc.or_(pc.equal(lines, ""), pc.utf8_is_space(lines))))
                yield pa.RecordBatch.from_arrays([lines], schema=_SCHEMA)


def _as_utf8(parts: Iterator[bytes], encoding: str, name: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for part in parts:
            yield decoder.decode(part).encode()
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError as error:
        raise _wrong_encoding(name, encoding, error) from error


def _lines(buffer: bytes, name: str) -> pa.Array:
    """The lines of a buffer as one array, without work per line in Python."""
    ends = np.flatnonzero(np.frombuffer(buffer, np.uint8) == ord("\n")) + 1
    if buffer and not buffer.endswith(b"\n"):
        ends = np.append(ends, len(buffer))
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    lines = pa.Array.from_buffers(pa.string(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(buffer)])
    try:
        lines.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _wrong_encoding(name, "utf-8", error) from error
    lines = pc.utf8_rtrim(lines, characters="\n")  # a line has one, at its end
    if b"\r\n" in buffer or buffer.endswith(b"\r"):
        lines = pc.replace_substring_regex(lines, pattern=r"\r$", replacement="")
    return lines


def _wrong_encoding(name: str, encoding: str, error: Exception) -> DataError:
    return DataError(f'{name} is not text in {encoding}: {error}. Pass encoding="..." to read_text.')
