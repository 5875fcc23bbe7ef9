"""Loggers from before logger callbacks."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.air import session
from paceline.tune.logger import (
    CSVLogger,
    JsonLogger,
    LegacyLoggerCallback,
    Logger,
    NoopLogger,
    TBXLogger,
    UnifiedLogger,
    pretty_print,
)
from tests.tune.trainable.one_trial import run_trial


class Lines(Logger):
    """Writes a line for everything that happens."""

    def _init(self) -> None:
        self._file = Path(self.logdir, "lines.txt")
        self._write(f"begin {self.config['x']}")

    def on_result(self, result: dict[str, Any]) -> None:
        self._write(f"score {result['score']}")

    def close(self) -> None:
        self._write("end")

    def _write(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{line}\n")


def test_a_logger_of_ones_own_sees_the_rows_of_its_trial(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        session.report({"score": 1})
        session.report({"score": 2})

    callbacks = [LegacyLoggerCallback([Lines, NoopLogger])]
    result = run_trial(train, {"x": 3}, callbacks=callbacks, storage_path=str(tmp_path))
    assert result.path is not None
    assert Path(result.path, "lines.txt").read_text().split("\n") == ["begin 3", "score 1", "score 2", "end", ""]


def test_file_loggers_write_the_usual_files(tmp_path: Path) -> None:
    logger = UnifiedLogger({"x": 3}, str(tmp_path), loggers=[JsonLogger, CSVLogger, TBXLogger, Lines])
    for score in (1, 2):
        logger.on_result({"score": score, "training_iteration": score})
    logger.flush()
    logger.close()
    assert json.loads((tmp_path / "params.json").read_text()) == {"x": 3}
    assert [json.loads(line)["score"] for line in (tmp_path / "result.json").read_text().splitlines()] == [1, 2]
    with (tmp_path / "progress.csv").open() as file:
        assert [row["score"] for row in csv.DictReader(file)] == ["1", "2"]
    assert list(tmp_path.glob("events*"))
    assert "score 2" in (tmp_path / "lines.txt").read_text()


def test_a_result_is_printed_without_its_configuration() -> None:
    text = pretty_print({"loss": 0.5, "config": {"lr": 1}, "info": {"a": 1, "b": [1, 2]}, "n": None, "pid": 1}, {"pid"})
    assert text == "info:\n  a: 1\n  b: [1, 2]\nloss: 0.5\n"


def test_a_logger_defines_on_result() -> None:
    with pytest.raises(TypeError, match="on_result"):
        Logger({}, ".")  # type: ignore[abstract]
