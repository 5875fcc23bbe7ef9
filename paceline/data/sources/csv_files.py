"""CSV files, decoded by Arrow as a stream.

The types are inferred from the beginning of the first file that has rows, and hold for all files.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.csv as pacsv

from paceline.air.errors import DataError
from paceline.data.block import ReadRequest
from paceline.data.formats import check_unique, conform
from paceline.data.sources.file_source import portions
from paceline.data.sources.lines import ByteRange, SpanSource, arrow_options, open_range, splits_at_newlines

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.sources.listed_file import ListedFile

_INFERENCE_BYTES = 4 << 20
_READ_ERRORS = (pa.ArrowException, OSError, KeyError, UnicodeError)
_OPTIONS: dict[str, type[Any]] = {
    "read_options": pacsv.ReadOptions,
    "parse_options": pacsv.ParseOptions,
    "convert_options": pacsv.ConvertOptions,
}


class CsvSource(SpanSource):
    """Large files are cut into blocks at line ends, unless values may hold line ends."""

    format = "csv"

    def __init__(self, files: tuple[ListedFile, ...], parallelism: int, arrow_csv_args: dict[str, Any]) -> None:
        super().__init__(files)
        options = arrow_options(arrow_csv_args, _OPTIONS, self.format)
        self._read_options: Any = options["read_options"]
        self._parse_options: Any = options["parse_options"]
        self._convert_options: Any = options["convert_options"]
        splittable = (
            not self._parse_options.newlines_in_values
            and splits_at_newlines(self._read_options.encoding)
            and not self._read_options.skip_rows
            and not self._read_options.skip_rows_after_names
        )
        self._cut(parallelism, splittable)
        self._headers: dict[int, list[str]] = {}

    def _find_schema(self) -> pa.Schema:
        schema = None
        for index, file in enumerate(self.files):
            if file.size == 0:
                continue
            with self._open_start(index) as reader:
                check_unique(reader.schema.names, file.label)
                schema = schema or reader.schema
                if any(batch.num_rows for batch in _first(reader)):
                    return reader.schema
        if schema is None:
            raise DataError(f"{self.files[0].label}: all files of this dataset are empty, without even a header.")
        return schema

    def _open_start(self, index: int) -> pacsv.CSVStreamingReader:
        """A file from its first line on, with types as Arrow infers them."""
        read = copy.copy(self._read_options)
        read.block_size = max(read.block_size, _INFERENCE_BYTES)
        file = self.files[index]
        try:
            stream = open_range(file, ByteRange(index, 0, file.size, True))
            return pacsv.open_csv(stream, read, self._parse_options, self._convert_options)
        except _READ_ERRORS as error:
            self._fail(error, index)

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        span = self._spans[block]
        label = self.files[span.file].label
        schema = self.schema()
        if request.columns is not None:
            known = set(schema.names)
            for column in request.columns:
                if column not in known:
                    raise DataError(f"{label} has no column {column!r}; the columns are {schema.names}.")
            # To count rows, one column has to be decoded.
            schema = pa.schema([schema.field(name) for name in request.columns or schema.names[:1]])
        yield from portions(self._decode(span, schema, request), request, label)

    def _decode(self, span: ByteRange, schema: pa.Schema, request: ReadRequest) -> Iterator[Chunk]:
        if span.start == span.stop:
            return
        self._check_header(span.file)
        read = copy.copy(self._read_options)
        read.use_threads = request.threads > 1
        if span.start > 0:
            read.column_names = self._header(span.file)
            read.autogenerate_column_names = False
        convert = copy.copy(self._convert_options)
        convert.column_types = schema
        convert.include_columns = schema.names
        try:
            with (
                open_range(self.files[span.file], span) as stream,
                pacsv.open_csv(stream, read, self._parse_options, convert) as reader,
            ):
                for chunk in reader:
                    yield conform(chunk, schema, self.files[span.file].label)
        except _READ_ERRORS as error:
            if not _is_empty(error):  # a line may be longer than a block; the next block then has none
                self._fail(error, span.file)

    # -- headers --------------------------------------------------------------------------

    def _check_header(self, index: int) -> None:
        if self._convert_options.include_columns:
            return  # the user has said which columns to take; a missing one is found when decoding
        names, expected = self._header(index), self.schema().names
        if set(names) != set(expected):
            missing = [name for name in expected if name not in names]
            surplus = [name for name in names if name not in expected]
            problem = f"has no column {missing[0]!r}" if missing else f"has an additional column {surplus[0]!r}"
            raise DataError(
                f"{self.files[index].label} {problem}; the first file of this dataset, {self.files[0].label}, has "
                f"{expected}. Read files with different columns as separate datasets, or choose the columns that all "
                "have: convert_options=pyarrow.csv.ConvertOptions(include_columns=[...])."
            )

    def _header(self, index: int) -> list[str]:
        if index not in self._headers:
            read = copy.copy(self._read_options)
            convert = pacsv.ConvertOptions()
            file = self.files[index]
            try:
                with (
                    open_range(file, ByteRange(index, 0, file.size, True)) as stream,
                    pacsv.open_csv(stream, read, self._parse_options, convert) as reader,
                ):
                    self._headers[index] = list(reader.schema.names)
            except _READ_ERRORS as error:
                self._fail(error, index)
        return self._headers[index]

    def _fail(self, error: Exception, index: int) -> NoReturn:
        text = str(error.args[0]) if isinstance(error, KeyError) else str(error)
        text = " ".join(text.split()).rstrip(".")
        if isinstance(error, OSError):
            raise DataError(f"{self.files[index].label} cannot be read: {text}.") from error
        numbered = re.search(r"column #(\d+)", text)
        names = self._headers.get(index, [])
        if numbered and int(numbered[1]) < len(names):
            text = text.replace(numbered[0], f"column {names[int(numbered[1])]!r}")
        raise DataError(
            f"{self.files[index].label} cannot be read as CSV: {text}. Types are taken from the beginning of the first "
            "file; to choose them, pass convert_options=pyarrow.csv.ConvertOptions(column_types={...}), and "
            "parse_options=pyarrow.csv.ParseOptions(...) for other delimiters or quotes."
        ) from error


def _is_empty(error: Exception) -> bool:
    return isinstance(error, pa.ArrowInvalid) and "Empty CSV file" in str(error)


def _first(reader: pacsv.CSVStreamingReader) -> Iterator[Chunk]:
    for batch in reader:
        yield batch
        return
