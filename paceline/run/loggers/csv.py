"""progress.csv: one line per row, one column per metric."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.air.constants import EXPR_PROGRESS_FILE
from paceline.air.metrics import flattened
from paceline.run.callbacks import Row, RowLogger
from paceline.run.loggers.append_file import LineFile
from paceline.run.loggers.short_config import ShortConfigs
from paceline.run.spec import Trial

_NEVER_SPANS_LINES = frozenset({int, float, bool, type(None)})


class CSVLoggerCallback(RowLogger):
    """Writes `progress.csv` into the trial's directory; nested metrics become columns ``a/b``.

    A metric that first appears later adds a column at the right; the lines before it
    get an empty cell there.
    """

    def __init__(self) -> None:
        self._tables: dict[str, _CSVTable] = {}
        self._short_configs = ShortConfigs()

    def log_rows(self, trial: Trial, rows: Sequence[Row]) -> None:
        self._table(trial).append([_one_level(row) for row in self._short_configs.rows(rows)])

    def rewind(self, trial: Trial, keep: int) -> int:
        return self._table(trial).truncate(keep)

    def flush(self) -> None:
        for table in self._tables.values():
            table.file.flush()

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        if table := self._tables.pop(trial.trial_id, None):
            table.file.close()

    def _table(self, trial: Trial) -> _CSVTable:
        table = self._tables.get(trial.trial_id)
        if table is None:
            table = self._tables[trial.trial_id] = _CSVTable(Path(trial.local_path, EXPR_PROGRESS_FILE))
        return table


class _CSVTable:
    """A row never spans two lines, so lines can be counted and lengthened without parsing them."""

    def __init__(self, path: Path) -> None:
        self.file = LineFile(path)
        self._columns = self._read_columns()

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        columns = self._columns
        new = {key: None for row in rows if not row.keys() <= columns.keys() for key in row if key not in columns}
        if new:
            self._add_columns(new)
        self.file.append(_csv_lines(map(row.get, columns) for row in rows))

    def truncate(self, keep: int) -> int:
        lines_with_header = self.file.truncate(keep + 1 if keep > 0 else 0)
        self._columns = self._read_columns()
        return max(0, lines_with_header - 1)

    def _add_columns(self, new: dict[str, None]) -> None:
        is_first = not self._columns
        self._columns.update(new)
        header = _csv_lines([self._columns])
        if is_first:
            self.file.append(header)
        else:
            self.file.widen(header.rstrip(b"\n"), b"," * len(new))

    def _read_columns(self) -> dict[str, None]:
        """The columns in their order."""
        header = self.file.first_line().decode(errors="replace")
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
