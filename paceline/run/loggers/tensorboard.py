"""events.out.tfevents.*: the numeric metrics for TensorBoard."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.air.constants import AUTOFILLED_KEYS, TRAINING_ITERATION
from paceline.run.callbacks import Row, RowLogger
from paceline.run.loggers.append_file import AppendFile
from paceline.run.loggers.tfevents import ScalarEncoder, session_start_record, version_record
from paceline.run.spec import Trial

_NO_CURVE = AUTOFILLED_KEYS - {"time_this_iter_s", "time_total_s"}

_file_number = itertools.count()


class TBXLoggerCallback(RowLogger):
    """Writes an event file into the trial's directory: a curve ``paceline/<metric>`` for each number."""

    def __init__(self) -> None:
        self._files: dict[str, _EventFile] = {}

    def log_rows(self, trial: Trial, rows: Sequence[Row]) -> None:
        self._file(trial).add(rows)

    def rewind(self, trial: Trial, keep: int) -> int:
        """An event file can't be cut back; the next row says which steps it replaces.

        Rows in another driver's file are not counted: all are to be sent again.
        """
        is_ours = trial.trial_id in self._files
        self._file(trial).supersede()
        return keep if is_ours else 0

    def flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        if file := self._files.pop(trial.trial_id, None):
            file.close()

    def _file(self, trial: Trial) -> _EventFile:
        file = self._files.get(trial.trial_id)
        if file is None:
            file = self._files[trial.trial_id] = _EventFile(Path(trial.local_path))
        return file


class _EventFile(AppendFile):
    def __init__(self, directory: Path) -> None:
        now = time.time()
        # TensorBoard reads a directory's files in the order of their names.
        writer = f"{socket.gethostname()}.{os.getpid()}.{next(_file_number):06d}"  # padded: 10 comes after 9
        super().__init__(directory / f"events.out.tfevents.{int(now):010d}.{writer}")
        self._encoder = ScalarEncoder(prefix="paceline/")
        self._supersedes = False
        self.append(version_record(now))

    def supersede(self) -> None:
        self._supersedes = True

    def add(self, rows: Sequence[Row]) -> None:
        self.append(b"".join([self._records(row) for row in rows]))

    def _records(self, row: Row) -> bytes:
        step, wall_time = row.get(TRAINING_ITERATION), row.get("timestamp")
        if type(step) is not int:
            step = row.get("_training_iteration", 0)
        if type(wall_time) is not int and type(wall_time) is not float:
            wall_time = time.time()
        names: list[str] = []
        values: list[float] = []
        _collect_numbers(row, names, values)
        record = self._encoder.record(wall_time, step, tuple(names), values) if names else b""
        if self._supersedes:
            self._supersedes = False
            return session_start_record(wall_time, step) + record
        return record


def _collect_numbers(row: Mapping[str, Any], names: list[str], values: list[float]) -> None:
    for key, value in row.items():
        kind = type(value)
        if kind is float or kind is int:
            if key not in _NO_CURVE:
                names.append(key)
                values.append(value)
        elif kind is dict and key not in _NO_CURVE:
            inner_names: list[str] = []
            _collect_numbers(value, inner_names, values)
            names += [f"{key}/{name}" for name in inner_names]
