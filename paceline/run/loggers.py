"""The loggers that are on by default, and the files that they append to.

result.json has one JSON object per row and line, params.json the configuration, progress.csv one line per row and one
column per metric. `tensorboard.py` writes the curves.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from paceline.air.constants import EXPR_PARAM_FILE, EXPR_PROGRESS_FILE, EXPR_RESULT_FILE
from paceline.air.metrics import flattened
from paceline.air.secrets import masked
from paceline.run.callbacks import Row, RowLogger
from paceline.run.spec import Trial
from paceline.storage.files import PRIVATE_FILE_MODE, storage_error, write_whole

F = TypeVar("F", bound="AppendFile")
_BUFFER_BYTES = 256 * 1024


class AppendFile:
    """Grows at its end. What the system refuses is raised as a StorageError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = _open(path)
        except OSError as error:
            raise storage_error(error, path, "opening the file") from error

    def append(self, content: bytes) -> None:
        try:
            self._file.write(content)
        except OSError as error:
            raise storage_error(error, self.path, "writing metrics", needed=len(content)) from error

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            raise storage_error(error, self.path, "writing metrics") from error

    def close(self) -> None:
        """The descriptor is closed even if the last bytes can't be written."""
        try:
            self._file.close()
        except OSError as error:
            raise storage_error(error, self.path, "writing metrics") from error


class LineFile(AppendFile):
    """One record per line. A half-written line that a killed driver left at the end is cut off."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._replacement = path.with_name(f".{path.name}.tmp")
        self._replacement.unlink(missing_ok=True)  # a driver killed in `widen` leaves one
        self._cut_torn_line()

    def truncate(self, keep: int) -> int:
        """Keep the first `keep` lines; returns how many lines are left."""
        self.flush()
        lines, end = self._end_of_line(keep)
        os.truncate(self.path, end)
        return lines

    def first_line(self) -> bytes:
        """The first line without its end; empty if there is none."""
        self.flush()
        with self.path.open("rb") as reader:
            return reader.readline().rstrip(b"\n")

    def widen(self, first_line: bytes, suffix: bytes) -> None:
        """Replace the first line and add `suffix` to all others: at once, or not at all."""
        self.flush()
        try:
            with self.path.open("rb") as reader, _open(self._replacement) as writer:
                reader.readline()
                writer.write(first_line + b"\n")
                writer.writelines(line.rstrip(b"\n") + suffix + b"\n" for line in reader)
            os.replace(self._replacement, self.path)
            self._file.close()
            self._file = _open(self.path)
        except OSError as error:
            self._replacement.unlink(missing_ok=True)
            raise storage_error(error, self.path, "adding columns") from error

    def _cut_torn_line(self) -> None:
        with self.path.open("rb") as reader:
            size = end = reader.seek(0, os.SEEK_END)
            while end > 0:
                start = max(0, end - _BUFFER_BYTES)
                reader.seek(start)
                end = start + reader.read(end - start).rfind(b"\n") + 1
                if end > start:
                    break
        if end < size:
            os.truncate(self.path, end)

    def _end_of_line(self, count: int) -> tuple[int, int]:
        """How many of the first `count` lines there are, and where the last of them ends."""
        lines, end = 0, 0
        with self.path.open("rb") as reader:
            while lines < count and (chunk := reader.read(_BUFFER_BYTES)):
                in_chunk = chunk.count(b"\n")
                if lines + in_chunk < count:
                    lines += in_chunk
                    end += len(chunk)
                    continue
                position = 0
                for _ in range(count - lines):
                    position = chunk.index(b"\n", position) + 1
                return count, end + position
        return lines, end


def _open(path: Path) -> BinaryIO:
    """Open for appending. The directory is never made anew: if it is gone, its file system is."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    return os.fdopen(descriptor, "ab", buffering=_BUFFER_BYTES)


class FileLogger(RowLogger, Generic[F]):
    """One file per trial, open from its first row to its end."""

    def __init__(self) -> None:
        self._files: dict[str, F] = {}

    def _open(self, trial: Trial) -> F:
        raise NotImplementedError

    def _file(self, trial: Trial) -> F:
        file = self._files.get(trial.trial_id)
        if file is None:
            file = self._files[trial.trial_id] = self._open(trial)
        return file

    def flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        if file := self._files.pop(trial.trial_id, None):
            file.close()


LONGEST_VALUE = 10_000
"""Characters, bytes or items of one value."""


class ShortConfigs:
    """Rows with the short form of their configuration. Each configuration is looked through once."""

    def __init__(self) -> None:
        self._last: Any = None
        self._short: Any = None

    def rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        """A row stays as it is if there is nothing to leave out."""
        return [self._row(row) for row in rows]

    def _row(self, row: Row) -> Row:
        config = row.get("config")
        if config is not self._last:
            self._last, self._short = config, short_config(config)
        return row if self._short is config else {**row, "config": self._short}


def short_config(config: Any) -> Any:
    """The configuration itself, or a copy without secrets and without what is too long."""
    return shortened(masked(config))


def shortened(value: Any, depth: int = 0) -> Any:
    """The value itself, or a copy in which what is too long is told by its kind and length."""
    if isinstance(value, str | bytes | bytearray | memoryview):
        return value if len(value) <= LONGEST_VALUE else f"<{type(value).__name__} of length {len(value)}>"
    if depth >= _DEEPEST:
        return value
    if isinstance(value, Mapping):
        short = {key: shortened(inner, depth + 1) for key, inner in value.items()}
        return short if any(short[key] is not value[key] for key in short) else value
    if isinstance(value, list | tuple):
        if len(value) > LONGEST_VALUE:
            return f"<{type(value).__name__} of length {len(value)}>"
        items = [shortened(inner, depth + 1) for inner in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


_DEEPEST = 50

_encode_lines = msgspec.json.Encoder(enc_hook=repr).encode_lines


class JsonLoggerCallback(FileLogger[LineFile]):
    """Writes `result.json` and `params.json` into the trial's directory.

    NaN and infinities become null: JSON has no words for them, and other tools would
    refuse the file. The run's journal keeps them exactly.
    """

    def __init__(self) -> None:
        super().__init__()
        self._short_configs = ShortConfigs()

    def log_trial_start(self, trial: Trial) -> None:
        path = Path(trial.local_path, EXPR_PARAM_FILE)
        try:
            write_whole(path, to_json(short_config(trial.config), indent=2) + b"\n")  # the journal has it on disk
        except OSError as error:
            raise storage_error(error, path, "writing the configuration") from error

    def log_rows(self, trial: Trial, rows: Sequence[Row]) -> None:
        rows = self._short_configs.rows(rows)
        try:
            lines = _encode_lines(rows)
        except (TypeError, ValueError, OverflowError, RecursionError):
            lines = b"".join(to_json(row) + b"\n" for row in rows)
        self._file(trial).append(lines)

    def rewind(self, trial: Trial, keep: int) -> int:
        return self._file(trial).truncate(keep)

    def _open(self, trial: Trial) -> LineFile:
        if not Path(trial.local_path, EXPR_PARAM_FILE).exists():  # the first that a logger of its own hears
            self.log_trial_start(trial)
        return LineFile(Path(trial.local_path, EXPR_RESULT_FILE))


def to_json(value: Any, indent: int | None = None) -> bytes:
    """Any value as JSON; what JSON does not know appears as its repr."""
    return json.dumps(_plain(value, 0), indent=indent, allow_nan=False).encode()


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth < _DEEPEST:  # beyond that it is most likely a structure that contains itself
        if isinstance(value, Mapping):
            return {str(key): _plain(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [_plain(inner, depth + 1) for inner in value]
    return repr(value)


_NEVER_SPANS_LINES = frozenset({int, float, bool, type(None)})


class CSVLoggerCallback(FileLogger["_CSVTable"]):
    """Writes `progress.csv` into the trial's directory; nested metrics become columns ``a/b``.

    A metric that first appears later adds a column at the right; the lines before it
    get an empty cell there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._short_configs = ShortConfigs()

    def log_rows(self, trial: Trial, rows: Sequence[Row]) -> None:
        self._file(trial).add([_one_level(row) for row in self._short_configs.rows(rows)])

    def rewind(self, trial: Trial, keep: int) -> int:
        return self._file(trial).truncate(keep)

    def _open(self, trial: Trial) -> _CSVTable:
        return _CSVTable(Path(trial.local_path, EXPR_PROGRESS_FILE))


class _CSVTable(LineFile):
    """A row never spans two lines, so lines can be counted and lengthened without parsing them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._columns = self._read_columns()

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        columns = self._columns
        new = {key: None for row in rows if not row.keys() <= columns.keys() for key in row if key not in columns}
        if new:
            self._add_columns(new)
        self.append(_csv_lines(map(row.get, columns) for row in rows))

    def truncate(self, keep: int) -> int:
        lines_with_header = super().truncate(keep + 1 if keep > 0 else 0)
        self._columns = self._read_columns()
        return max(0, lines_with_header - 1)

    def _add_columns(self, new: dict[str, None]) -> None:
        is_first = not self._columns
        self._columns.update(new)
        header = _csv_lines([self._columns])
        if is_first:
            self.append(header)
        else:
            self.widen(header.rstrip(b"\n"), b"," * len(new))

    def _read_columns(self) -> dict[str, None]:
        """The columns in their order."""
        header = self.first_line().decode(errors="replace")
        return dict.fromkeys(next(csv.reader([header]), []))


def _one_level(row: Row) -> Row:
    """Rows hold plain dicts and mostly scalars, which an exact check of types passes quickly."""
    flat: Row = {}
    for key, value in row.items():
        if type(value) is dict:
            flat.update(flattened({key: value}))
        else:
            flat[key] = value
    return flat


def _csv_lines(rows: Iterable[Iterable[Any]]) -> bytes:
    cells = ([cell if type(cell) in _NEVER_SPANS_LINES else _one_line(cell) for cell in row] for row in rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(cells)
    return text.getvalue().encode(errors="backslashreplace")


def _one_line(cell: object) -> str:
    text = str(cell)
    return text if text.isprintable() else text.replace("\r", "\\r").replace("\n", "\\n")


def default_loggers() -> list[RowLogger]:
    """JSON and CSV always; TensorBoard files for those who have installed tensorboardX."""
    loggers: list[RowLogger] = [JsonLoggerCallback(), CSVLoggerCallback()]
    if importlib.util.find_spec("tensorboardX") is not None:
        from paceline.run.tensorboard import TBXLoggerCallback

        loggers.append(TBXLoggerCallback())
    return loggers
