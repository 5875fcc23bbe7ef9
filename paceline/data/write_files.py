"""Writing the rows of a plan to files: one per block, all of them or none.

On a local disk files get their names when the last one is complete; until then they are hidden ones. Other filesystems
get each file whole, and lose the ones they got if a later one fails.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import ConfigError, DataError, DataNotFoundError, StorageError
from paceline.data.execution import map_blocks
from paceline.data.objects import check_no_objects
from paceline.data.sources.listing import list_files

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.plan import Plan
    from paceline.storage.filesystem import FsspecFilesystem

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
                    f"write_numpy: column {self._column!r} holds {schema.field(0).type}, which is no array of"
                    " numbers or text of one shape: use write_parquet."
                )
            array = array.astype(str)
        with path.open("wb") as file:
            np.save(file, array, allow_pickle=False)


def write_blocks(
    plan: Plan, path: str | os.PathLike[str], form: FileFormat, *, filesystem: Any, try_create_dir: bool
) -> None:
    """One file per block, `<uuid>_000000.<extension>` and so on; blocks without rows have none."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ConfigError(f"write_{form.name}: the path is {path!r}: give a directory or a URI.")
    what = f"write_{form.name} to {os.fspath(path)!r}"
    schema = plan.schema()
    check_no_objects(schema, what)
    for name in form.columns or ():
        if name not in schema.names:
            raise DataError(f"{what}: there is no column {name!r}; the columns are {schema.names}.")
    if form.columns is not None:
        schema = pa.schema([schema.field(name) for name in form.columns])
    if not schema.names:
        raise DataError(f"{what}: the dataset has no rows and no columns.")
    target = _target(path, filesystem, try_create_dir)
    there = _files_there(path, filesystem, form)
    if there:
        warn_at_users_line(
            f"{what}: there are {there} .{form.extension} file(s) already, and they stay: read_{form.name} on that "
            "directory gives their rows and the new ones. Write to a new directory, or delete the files first."
        )
    token = uuid.uuid4().hex

    def write_block(block: int, chunks: Iterator[Chunk]) -> bool:
        rows = (chunk for chunk in chunks if chunk.num_rows)
        first = next(rows, None)
        if first is None:
            return False
        write_file(block, chain([first], rows))
        return True

    def write_file(block: int, chunks: Iterator[Chunk]) -> None:
        with target.file(f"{token}_{block:06d}.{form.extension}") as place:
            form.write(place, schema, chunks)

    try:
        written = list(map_blocks(plan, write_block, columns=form.columns))
        if not any(written):
            write_file(0, iter(()))  # so that the columns are known to who reads it
        target.commit()
    except BaseException as error:
        target.abort()
        if isinstance(error, OSError | pa.ArrowException) and not isinstance(error, DataError):
            raise DataError(f"{what} failed: {error}") from error
        raise


class _File:
    """Where to write one file; on a clean end it is handed to the target."""

    def __init__(self, target: _Target, name: str) -> None:
        self._target = target
        self._name = name
        self._place = target.place_for(name)

    def __enter__(self) -> Path:
        return self._place

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._target.complete(self._name, self._place)
        else:
            self._place.unlink(missing_ok=True)


class _Target(ABC):
    """A directory that files are written to, from several threads."""

    def file(self, name: str) -> _File:
        return _File(self, name)

    @abstractmethod
    def place_for(self, name: str) -> Path:
        """A local path to write the file to."""

    @abstractmethod
    def complete(self, name: str, place: Path) -> None:
        """The file has been written."""

    @abstractmethod
    def commit(self) -> None:
        """All files have been written."""

    @abstractmethod
    def abort(self) -> None:
        """Take back what has been written."""


class _LocalTarget(_Target):
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._hidden: dict[str, Path] = {}

    def place_for(self, name: str) -> Path:
        return self._directory / f".{name}.tmp"  # readers pass over hidden files

    def complete(self, name: str, place: Path) -> None:
        self._hidden[name] = place

    def commit(self) -> None:
        for name, place in sorted(self._hidden.items()):
            place.rename(self._directory / name)

    def abort(self) -> None:
        for name, place in self._hidden.items():
            place.unlink(missing_ok=True)
            (self._directory / name).unlink(missing_ok=True)


class _RemoteTarget(_Target):
    """Files are written here first: what is uploaded is complete."""

    def __init__(self, filesystem: FsspecFilesystem) -> None:
        self._filesystem = filesystem
        self._staging = tempfile.TemporaryDirectory(prefix="paceline-write-")
        self._uploaded: list[str] = []

    def place_for(self, name: str) -> Path:
        return Path(self._staging.name) / name

    def complete(self, name: str, place: Path) -> None:
        self._filesystem.upload(place, name)
        self._uploaded.append(name)
        place.unlink()

    def commit(self) -> None:
        self._staging.cleanup()

    def abort(self) -> None:
        self._staging.cleanup()
        for name in self._uploaded:
            try:
                self._filesystem.delete(name)
            except StorageError:
                return  # the error that led here is the one to tell


def _target(path: str | os.PathLike[str], filesystem: Any, try_create_dir: bool) -> _Target:
    text = os.fspath(path)
    if filesystem is None and text.startswith("file://"):
        text = text.removeprefix("file://")
    if filesystem is not None or "://" in text:
        from paceline.storage.filesystem import FsspecFilesystem

        return _RemoteTarget(FsspecFilesystem(text, filesystem))
    directory = Path(text).expanduser()
    if try_create_dir:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"the directory {text!r} cannot be made: {error.strerror}.") from error
    elif not directory.is_dir():
        raise DataNotFoundError(f"there is no directory {text!r}: make it, or leave out try_create_dir=False.")
    return _LocalTarget(directory)


def _files_there(path: str | os.PathLike[str], filesystem: Any, form: FileFormat) -> int:
    """How many files of this format are there: what reading the directory would find."""
    try:
        return len(list_files(path, filesystem, (f".{form.extension}",)))
    except DataError:  # nothing there, or a place that can be written to but not listed
        return 0


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, datetime | timedelta) and hasattr(value, "isoformat"):  # pandas' own, with nanoseconds
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
