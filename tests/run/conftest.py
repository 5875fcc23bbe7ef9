"""A trial, its directory and its journal, and loggers that write into it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paceline.run.callbacks import RowLogger
from paceline.run.spec import Trial
from paceline.storage.journal import Journal
from paceline.storage.run_dir import RunDir

if TYPE_CHECKING:
    from tests.run.logged_rows import LoggerMaker


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    directory = RunDir(tmp_path / "trial")
    directory.create()
    return directory


@pytest.fixture
def journal(run_dir: RunDir) -> Iterator[Journal]:
    opened = Journal(run_dir.journal)
    yield opened
    opened.close()


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial("4913f_00000", "TorchTrainer", str(tmp_path), "e1", config={"train_loop_config": {"lr": 0.1}})


@pytest.fixture
def make(trial: Trial) -> Iterator[LoggerMaker]:
    """Makes loggers and closes their files after the test."""
    made: list[RowLogger] = []

    def make_logger(kind: type[RowLogger]) -> RowLogger:
        made.append(kind())
        return made[-1]

    yield make_logger
    for logger in made:
        logger.log_trial_end(trial)
