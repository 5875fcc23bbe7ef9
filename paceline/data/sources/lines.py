"""Text files: cut into blocks without reading them, and into buffers of whole lines while reading.

A block is a range of bytes. The lines that begin inside the range belong to it: its reader looks for the first
line end at either side. So no block depends on what another one holds.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.errors import ConfigError, DataError
from paceline.data.block import Block, ReadRequest
from paceline.data.sources.file_source import FileSource, even_ranges, one_file, portions
from paceline.data.sources.listed_file import DETECT, ListedFile, open_checked

if TYPE_CHECKING:
    from paceline.data.block import Chunk


BLOCK_BYTES = 32 << 20
SMALLEST_BLOCK = 64 << 10
SEARCH_STEP = 64 << 10
READ_STEP = 4 << 20


@dataclass(frozen=True)
class ByteRange:
    """Bytes of a file, before the ends are moved to line ends."""

    file: int
    start: int
    stop: int
    whole: bool


def cut_files(files: Sequence[ListedFile], parallelism: int, *, splittable: bool) -> list[ByteRange]:
    """Ranges of about 32 MB, smaller if more blocks are wanted; compressed files stay whole."""
    size = BLOCK_BYTES
    if parallelism != -1:
        total = sum(file.size for file in files)
        size = max(SMALLEST_BLOCK, min(size, -(-total // parallelism)))
    spans = []
    for index, file in enumerate(files):
        if file.size <= size or not splittable or compression(file) is not None:
            spans.append(ByteRange(index, 0, file.size, True))
        else:
            spans += [
                ByteRange(index, start, stop, False) for start, stop in even_ranges(file.size, -(-file.size // size))
            ]
    return spans


def range_block(files: Sequence[ListedFile], span: ByteRange) -> Block:
    label = files[span.file].label
    return Block(label if span.whole else f"{label}, bytes {span.start:,} to {span.stop:,}")


def compression(file: ListedFile) -> str | None:
    """The codec that the user named, or that the file's name stands for."""
    if file.compression != DETECT:
        return file.compression
    for ending, codec in ((".gz", "gzip"), (".bz2", "bz2"), (".zst", "zstd"), (".lz4", "lz4")):
        if file.path.lower().endswith(ending):
            return codec
    return None


def arrow_options(given: dict[str, Any], known: Mapping[str, type[Any]], form: str) -> dict[str, Any]:
    """The options of Arrow's reader of a format: as the user gave them, or its defaults."""
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"read_{form} has no argument {name!r}; for {form.upper()} there are {', '.join(known)}.")
        if value is not None and not isinstance(value, known[name]):
            raise ConfigError(f"{name} is a {type(value).__name__}; give a pyarrow.{form}.{known[name].__name__}.")
    return {name: given.get(name) or kind() for name, kind in known.items()}


def splits_at_newlines(encoding: str) -> bool:
    """True if a byte 10 is a line end in this encoding and nothing else; not so in UTF-16."""
    return "\n".encode(encoding) == b"\n"


def open_range(file: ListedFile, span: ByteRange) -> pa.NativeFile:
    """A stream of the span's lines, decompressed; closing it closes the file."""
    opened = open_checked(file)
    codec = compression(file)
    if codec is not None:
        return pa.CompressedInputStream(opened, codec)
    if span.whole:
        return opened
    start = _line_start(opened, span.start, file.size)
    stop = _line_start(opened, span.stop, file.size)
    return opened.get_stream(start, stop - start)


def _line_start(file: pa.NativeFile, position: int, size: int) -> int:
    """Where the first line begins at or after this position."""
    if position == 0 or position >= size:
        return min(position, size)
    position -= 1  # if a line ends right before, the next one begins exactly there
    while position < size:
        part = file.read_at(min(SEARCH_STEP, size - position), position)
        found = bytes(part).find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(part)
    return size


def read_parts(stream: pa.NativeFile, label: str) -> Iterator[bytes]:
    """The bytes of a stream, some MB at a time."""
    while True:
        try:
            part = stream.read(READ_STEP)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{label} cannot be read: {error}") from error
        if not part:
            return
        yield part


def whole_lines(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes, cut anew so that every buffer ends with a line; the last one may lack its line end."""
    rest: list[bytes] = []
    for part in parts:
        end = part.rfind(b"\n") + 1
        if end == 0:
            rest.append(part)
            continue
        yield b"".join((*rest, part[:end]))
        rest = [part[end:]] if end < len(part) else []
    if rest:
        yield b"".join(rest)


_SCHEMA = pa.schema([pa.field("text", pa.string())])
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SpanSource(FileSource):
    """Its blocks are ranges of bytes of its files. Subclasses cut them in their constructor."""

    def _cut(self, parallelism: int, splittable: bool) -> None:
        self._spans = cut_files(self.files, parallelism, splittable=splittable)
        self._blocks = [range_block(self.files, span) for span in self._spans]

    def blocks(self) -> Sequence[Block]:
        return self._blocks

    def files_at(self, block: int, start: int, rows: int) -> range:
        return one_file(self._spans[block].file)


class TextSource(SpanSource):
    """Lines end with \\n or \\r\\n, which is not part of the text."""

    format = "text"

    def __init__(self, files: tuple[ListedFile, ...], parallelism: int, encoding: str, drop_empty_lines: bool) -> None:
        super().__init__(files)
        try:
            self._encoding = codecs.lookup(encoding).name
        except LookupError as error:
            raise ConfigError(f"encoding={encoding!r}: there is no such encoding; for example use 'utf-8'.") from error
        self._drop_empty_lines = drop_empty_lines
        self._cut(parallelism, splits_at_newlines(self._encoding))

    def _find_schema(self) -> pa.Schema:
        return _SCHEMA

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        span = self._spans[block]
        yield from portions(self._decode(span), request, self.files[span.file].label)

    def _decode(self, span: ByteRange) -> Iterator[Chunk]:
        name = range_block(self.files, span).name
        with open_range(self.files[span.file], span) as stream:
            parts = read_parts(stream, name)
            if self._encoding != "utf-8":
                parts = _as_utf8(parts, self._encoding, name)
            for number, buffer in enumerate(whole_lines(parts)):
                first = number == 0 and span.start == 0
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
