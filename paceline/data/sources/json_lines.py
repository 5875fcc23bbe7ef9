"""JSON: one object per line, or one array of objects per file. Arrow decodes and infers the types.

The types come from the beginning of the first file that has rows, and hold for all files.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.json as pajson

from paceline.air.errors import DataError
from paceline.data.block import ReadRequest
from paceline.data.formats import conform
from paceline.data.sources.file_source import portions
from paceline.data.sources.lines import (
    ByteRange,
    SpanSource,
    arrow_options,
    open_range,
    range_block,
    read_parts,
    whole_lines,
)
from paceline.data.sources.listed_file import open_checked

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.sources.listed_file import ListedFile

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OBJECTS_AT_ONCE = 16_384
_OPTIONS: dict[str, type[Any]] = {"read_options": pajson.ReadOptions, "parse_options": pajson.ParseOptions}


class JsonSource(SpanSource):
    """Large files of lines are cut into blocks; a file that is one array is one block and is read as a whole."""

    format = "json"

    def __init__(self, files: tuple[ListedFile, ...], parallelism: int, arrow_json_args: dict[str, Any]) -> None:
        super().__init__(files)
        options = arrow_options(arrow_json_args, _OPTIONS, self.format)
        self._read_options: Any = options["read_options"]
        self._parse_options: Any = options["parse_options"]
        self._across_lines = bool(self._parse_options.newlines_in_values)
        self._cut(parallelism, splittable=not self._across_lines)

    def _find_schema(self) -> pa.Schema:
        for span in self._spans:
            for buffer in self._buffers(span):
                table = self._parse(buffer, self._parse_options, 1, span)
                if table.num_rows:
                    return table.schema
        return self._parse_options.explicit_schema or pa.schema([])

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        span = self._spans[block]
        yield from portions(self._decode(span, request), request, self.files[span.file].label)

    def _decode(self, span: ByteRange, request: ReadRequest) -> Iterator[Chunk]:
        schema = self.schema()
        options = copy.copy(self._parse_options)
        options.explicit_schema = schema
        if options.unexpected_field_behavior == "infer":  # a new field must not get lost, nor change the schema
            options.unexpected_field_behavior = "error"
        for buffer in self._buffers(span):
            for chunk in self._parse(buffer, options, request.threads, span).to_batches():
                yield conform(chunk, schema, self.files[span.file].label)

    def _buffers(self, span: ByteRange) -> Iterator[bytes]:
        """The span as buffers of whole objects, one per line."""
        file = self.files[span.file]
        if self._is_array(file, span):
            if span.start == 0:
                yield from self._array_as_lines(file, span)
            return
        with open_range(file, span) as stream:
            parts = read_parts(stream, file.label)
            buffers = iter([b"".join(parts)]) if self._across_lines else whole_lines(parts)
            for number, buffer in enumerate(buffers):
                content = buffer.removeprefix(_BYTE_ORDER_MARK) if number == 0 and span.start == 0 else buffer
                if content.strip():
                    yield content

    def _is_array(self, file: ListedFile, span: ByteRange) -> bool:
        if span.whole:
            with open_range(file, span) as stream:
                start = stream.read(4096)
        else:
            with open_checked(file, ranges=True) as opened:
                start = opened.read(4096)
        return bytes(start).removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(b"[")

    def _array_as_lines(self, file: ListedFile, span: ByteRange) -> Iterator[bytes]:
        """Written anew line by line, so that both forms give the same types."""
        with open_range(file, ByteRange(span.file, 0, file.size, True)) as stream:
            content = b"".join(read_parts(stream, file.label))
        try:
            rows = json.loads(content.removeprefix(_BYTE_ORDER_MARK))
        except ValueError as error:
            raise DataError(f"{file.label} begins like an array but is no valid JSON: {error}.") from error
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                raise DataError(f"{file.label}: item {number} of the array is no object but {type(row).__name__}.")
        remaining = iter(rows)
        while group := list(itertools.islice(remaining, _OBJECTS_AT_ONCE)):
            yield "\n".join(json.dumps(row, ensure_ascii=False) for row in group).encode()

    def _parse(self, buffer: bytes, options: pajson.ParseOptions, threads: int, span: ByteRange) -> pa.Table:
        read = copy.copy(self._read_options)
        read.use_threads = threads > 1
        read.block_size = max(read.block_size, len(buffer))  # one block: types are inferred from all of it
        try:
            return pajson.read_json(pa.BufferReader(buffer), read, options)
        except (pa.ArrowException, ValueError) as error:
            text = " ".join(str(error).split()).rstrip(".") + _new_fields(buffer, read, options)
            raise DataError(
                f"{range_block(self.files, span).name} cannot be read as JSON lines: {text}. Types and fields are "
                "taken from the beginning of the first file; to choose them, pass "
                "parse_options=pyarrow.json.ParseOptions(explicit_schema=pyarrow.schema({...}))."
            ) from error


def _new_fields(buffer: bytes, read: pajson.ReadOptions, options: pajson.ParseOptions) -> str:
    """Arrow says that there was an unexpected field, but not which one."""
    if options.explicit_schema is None:
        return ""
    tolerant = copy.copy(options)
    tolerant.unexpected_field_behavior = "infer"
    try:
        found = pajson.read_json(pa.BufferReader(buffer), read, tolerant).schema
    except (pa.ArrowException, ValueError):  # something else is wrong, and has been said
        return ""
    names = [field.name for field in found if field not in options.explicit_schema]
    return f" (new or different: {', '.join(names)})"
