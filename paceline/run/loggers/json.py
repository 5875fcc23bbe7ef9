"""result.json: one JSON object per row and line; params.json: the configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from paceline.air.constants import EXPR_PARAM_FILE, EXPR_RESULT_FILE
from paceline.run.callbacks import Row, RowLogger
from paceline.run.loggers.append_file import LineFile
from paceline.run.loggers.short_config import ShortConfigs, short_config
from paceline.run.spec import Trial
from paceline.storage.files import storage_error, write_whole

_DEEPEST = 50

_encode_lines = msgspec.json.Encoder(enc_hook=repr).encode_lines


class JsonLoggerCallback(RowLogger):
    """Writes `result.json` and `params.json` into the trial's directory.

    NaN and infinities become null: JSON has no words for them, and other tools would
    refuse the file. The run's journal keeps them exactly.
    """

    def __init__(self) -> None:
        self._files: dict[str, LineFile] = {}
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

    def flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        if file := self._files.pop(trial.trial_id, None):
            file.close()

    def _file(self, trial: Trial) -> LineFile:
        file = self._files.get(trial.trial_id)
        if file is None:
            if not Path(trial.local_path, EXPR_PARAM_FILE).exists():  # the first that a logger of its own hears
                self.log_trial_start(trial)
            file = self._files[trial.trial_id] = LineFile(Path(trial.local_path, EXPR_RESULT_FILE))
        return file


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
