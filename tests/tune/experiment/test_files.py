"""Which of several experiments in a directory is the newest."""

from __future__ import annotations

import os
import time
from pathlib import Path

from paceline.storage.files import SharedSync
from paceline.tune.experiment.files import newest_journal
from paceline.tune.experiment.records import ExperimentJournal, SearchLeft


def test_experiment_that_was_killed_after_many_rows_has_its_time_at_the_beginning(tmp_path: Path) -> None:
    sync = SharedSync()
    for name, rows in (("short", 1), ("long", 3000)):
        journal = ExperimentJournal(tmp_path / f"experiment-{name}.jsonl", sync)
        journal.append(SearchLeft(status="interrupted", time=time.time()))
        for index in range(rows):
            journal.row(0, index, {"text": "x" * 100}, None)
        journal.close()
    sync.close()
    os.utime(tmp_path / "experiment-long.jsonl", (0, 0))
    assert newest_journal(tmp_path).name == "experiment-long.jsonl"
