"""The rows of a run and the trials of a search as tables, for files that other programs read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.constants import TIME_TOTAL_S, TRAINING_ITERATION
from paceline.air.metrics import reported
from paceline.air.result import frame_of
from paceline.air.secrets import starred
from paceline.run.found_runs import fetched_run
from paceline.run.history import JournalHistory
from paceline.run.records import no_journal
from paceline.storage.run_dir import RunDir, resolve_storage
from paceline.tune.experiment.summary import ExperimentSummary

if TYPE_CHECKING:
    import pandas

FILLED_IN = (TRAINING_ITERATION, TIME_TOTAL_S, "timestamp")
"""Of what a row has beside the user's metrics; the rest is the same in every row, or follows from these."""


def run_frame(path: str, filesystem: Any = None, *, ranks: bool = False) -> pandas.DataFrame:
    """The rows of a run that survive, one for each report; with `ranks` one for each report and rank."""
    with _journal(path, filesystem) as journal:
        history = JournalHistory(journal)
        return frame_of(history.rank_rows() if ranks else _short(history.rows()))


def run_rows(path: str, filesystem: Any = None) -> Iterator[dict[str, Any]]:
    """The rows of a run that survive, without what is the same in every row. They are read one by one."""
    with _journal(path, filesystem) as journal:
        yield from _short(JournalHistory(journal).rows())


def search_frame(search: ExperimentSummary) -> pandas.DataFrame:
    """The trials of a search, one in a row: parameters are "config/...", then the metrics that were reported last."""
    return frame_of(
        {
            "trial_id": trial.trial_id,
            "status": trial.status,
            TRAINING_ITERATION: trial.reached.iteration,
            TIME_TOTAL_S: trial.reached.time_total_s,
            "config": starred(trial.params),
            **trial.reached.metrics,
        }
        for trial in search.trials
    )


def _short(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {**{key: row[key] for key in FILLED_IN}, **reported(row)}


@contextlib.contextmanager
def _journal(path: str, filesystem: Any) -> Iterator[Path]:
    place = resolve_storage(path)
    if isinstance(place, Path):
        run_dir = RunDir(place)
        if not run_dir.journal.is_file():
            raise no_journal(run_dir)
        yield run_dir.journal
    else:
        with fetched_run(place, filesystem) as (_, run_dir):
            yield run_dir.journal
