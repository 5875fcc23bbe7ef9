"""The formats that write methods know: how the rows of a block become one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import ConfigError, DataError

if TYPE_CHECKING:
    from paceline.data.block import Chunk

ROW_GROUP_ROWS = 1 << 20
ROW_GROUP_BYTES = 128 << 20


class FileFormat(ABC):
    """How rows become one file."""

    name: str
    """As in write_<name> and read_<name>."""
    extension: str
    columns: tuple[str, ...] | None = None
    """What is written; None: all columns."""

    @abstractmethod
    def write(self, path: Path, schema: pa.Schema, chunks: Iterator[Chunk]) -> None:
        """Write all of them to a new file."""


class ParquetFormat(FileFormat):
    name = "parquet"
    extension = "parquet"

    def __init__(self, settings: dict[str, Any]) -> None:
        self._rows = settings.pop("row_group_size", ROW_GROUP_ROWS)
        self._settings = settings

    def write(self, path: Path, schema: pa.Schema, chunks: Iterator[Chunk]) -> None:
        import pyarrow.parquet as pq

        try:
            opened = pq.ParquetWriter(path, schema, **self._settings)
        except TypeError as error:
            raise ConfigError(
                f"write_parquet: pyarrow.parquet.ParquetWriter does not take {self._settings}: {error}."
            ) from error
        with opened as writer:
            waiting: list[Chunk] = []
            for chunk in chunks:
                waiting.append(chunk)
                rows = sum(each.num_rows for each in waiting)
                if rows >= self._rows or sum(each.nbytes for each in waiting) >= ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(waiting), row_group_size=self._rows)
                    waiting = []
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting), row_group_size=self._rows)


class CsvFormat(FileFormat):
    name = "csv"
    extension = "csv"

    def __init__(self, settings: dict[str, Any]) -> None:
        for name in settings:
            if name not in ("write_options", "memory_pool"):
                raise ConfigError(
                    f"write_csv has no setting {name!r}: settings of the format go into "
                    "write_options=pyarrow.csv.WriteOptions(...)."
                )
        self._settings = settings

    def write(self, path: Path, schema: pa.Schema, chunks: Iterator[Chunk]) -> None:
        import pyarrow.csv as pa_csv

        for field in schema:
            if pa.types.is_nested(field.type) or isinstance(field.type, pa.BaseExtensionType):
                raise DataError(
                    f"write_csv: column {field.name!r} holds {field.type}, and CSV has no form for it:"
                    " use write_parquet or write_json, or drop the column."
                )
        with pa.OSFile(str(path), "wb") as file, pa_csv.CSVWriter(file, schema, **self._settings) as writer:
            for chunk in chunks:
                if len(schema) == 1 and chunk.column(0).null_count:
                    # A null alone in its row would be an empty line, which readers pass over: it becomes "".
                    texts = chunk.column(0).cast(pa.string()).fill_null("")
                    bare = pa_csv.WriteOptions(include_header=False)
                    pa_csv.write_csv(pa.table([texts], names=schema.names), file, bare)
                else:
                    writer.write_batch(chunk)


class JsonFormat(FileFormat):
    """One object per line. Bytes are written as base64, arrays as lists, times in ISO form."""

    name = "json"
    extension = "json"

    def write(self, path: Path, schema: pa.Schema, chunks: Iterator[Chunk]) -> None:
        import msgspec

        from paceline.data.formats import to_rows

        encoder = msgspec.json.Encoder(enc_hook=_as_json)
        with path.open("wb") as file:
            for chunk in chunks:
                file.write(encoder.encode_lines(to_rows(chunk)))


class PandasJsonFormat(FileFormat):
    """As pandas writes it, with settings of `DataFrame.to_json`."""

    name = "json"
    extension = "json"

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = {"orient": "records", **settings}
        self._settings.setdefault("lines", self._settings["orient"] == "records")
        if self._settings.pop("mode", "w") != "w" or self._settings.pop("path_or_buf", None) is not None:
            raise ConfigError("write_json names its files itself: leave out mode and path_or_buf.")

    def write(self, path: Path, schema: pa.Schema, chunks: Iterator[Chunk]) -> None:
        from paceline.data.formats import concat, to_batch

        if not self._settings["lines"]:  # the file is one value, made of all rows
            chunks = iter([concat(list(chunks) or [pa.RecordBatch.from_pylist([], schema)])])
        with path.open("w", encoding="utf-8") as file:
            for chunk in chunks:
                frame: Any = to_batch(chunk, "pandas", copy=False)
                try:
                    frame.to_json(file, **self._settings)
                except (TypeError, ValueError) as error:
                    raise ConfigError(
                        f"write_json: pandas.DataFrame.to_json does not take {self._settings}: {error}."
                    ) from error


class NumpyFormat(FileFormat):
    """One column as an array."""

    name = "numpy"
    extension = "npy"

    def __init__(self, column: str) -> None:
        self._column = column
        self.columns = (column,)

    def write(self, path: Path, schema: pa.Schema, chunks: Iterator[Chunk]) -> None:
        from paceline.data.formats import concat, to_numpy

        parts = list(chunks) or [pa.RecordBatch.from_pylist([], schema)]
        array = to_numpy(concat(parts).column(0), copy=False)
        if array.dtype == object:
            if not all(isinstance(value, str) for value in array):
                raise DataError(
                    f"write_numpy: column {self._column!r} holds {schema.field(0).type}, which is not an array of"
                    " numbers or text of one shape: use write_parquet."
                )
            array = array.astype(str)
        with path.open("wb") as file:
            np.save(file, array, allow_pickle=False)


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, datetime | timedelta) and hasattr(value, "isoformat"):  # pandas' own, with nanoseconds
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
