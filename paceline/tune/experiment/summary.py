"""A search from its journal: in one struct, which is what everything that displays searches shows, and as a ResultGrid.

As with the summary of a run nothing is locked, changed or unpickled. Files of trials are looked at only where the
search's own journal does not say how a trial ended.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, UnsetType

from paceline.air.checks import warn_at_users_line
from paceline.air.constants import TRAINING_ITERATION
from paceline.air.errors import RestoreError, StorageError
from paceline.air.metrics import nested_get, reported
from paceline.air.result import Result
from paceline.run.found_runs import RunStatus, RunSummary, summary_of
from paceline.run.history import load_result
from paceline.run.records import Reached
from paceline.run.spec import Trial
from paceline.storage import lock
from paceline.storage.run_dir import resolve_storage
from paceline.tune.experiment.files import newest_journal
from paceline.tune.experiment.records import (
    Facts,
    SearchLeft,
    SearchRecords,
    TrialCreated,
    TrialEnded,
    unrecorded_trials,
)
from paceline.tune.result_grid import ResultGrid
from paceline.tune.search.parameters import nested
from paceline.tune.search.space import from_description
from paceline.tune.trial_outcome import TrialOutcome, outcome_of_record


class TrialSummary(RunSummary, kw_only=True):
    """A trial is a run of a search, with a number."""

    number: int
    params: dict[str, Any]
    """What the search chose for it, as far as it is plain data."""


class ExperimentSummary(Struct, kw_only=True):
    """What a search is, whether it is alive, and what its trials have reached."""

    path: str
    name: str
    id: str
    trainable: str
    metric: str | list[str] | None
    mode: str | list[str] | None
    num_samples: int
    status: RunStatus
    alive: bool
    started: float
    ended: float | None
    trials: list[TrialSummary]

    @property
    def best(self) -> TrialSummary | None:
        """The trial with the best last value of the metric; None without a metric, or if none has reported it."""
        if not isinstance(self.metric, str) or self.mode not in ("min", "max"):
            return None
        sign = 1.0 if self.mode == "max" else -1.0
        scored = [(sign * value, trial) for trial in self.trials if (value := _score(trial, self.metric)) is not None]
        return max(scored, key=lambda each: each[0])[1] if scored else None


def _score(trial: TrialSummary, metric: str) -> float | None:
    value = nested_get(trial.reached.metrics, metric)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def experiment_summary_of(path: str | Path) -> ExperimentSummary:
    """The summary of the newest search in a local directory."""
    root = resolve_storage(path)
    if isinstance(root, str):
        raise RestoreError(f"{root}: a search is read from a local directory; copy it to one first.")
    journal = newest_journal(root)
    records = SearchRecords(journal, with_rows=False)
    facts, alive = records.facts, lock.is_held(journal.with_suffix(".lock"))
    left = records.all[-1] if isinstance(records.all[-1], SearchLeft) else None
    return ExperimentSummary(
        path=str(root),
        name=facts.name,
        id=facts.id,
        trainable=facts.trainable,
        metric=facts.metric,
        mode=facts.mode,
        num_samples=facts.num_samples,
        status=left.status if left is not None else "running" if alive else "killed",
        alive=alive,
        started=records.started,
        ended=left.time if left is not None else None,
        trials=[_trial(root, facts, trial, end) for trial, end in records.trials()],
    )


def _trial(root: Path, facts: Facts, trial: TrialCreated, end: TrialEnded | None) -> TrialSummary:
    if end is not None:
        run = _ended(root / trial.dir, facts, trial, end)
    else:
        try:
            run = summary_of(root / trial.dir)
        except (RestoreError, StorageError):
            run = _pending(root / trial.dir, facts, trial)
    values = {name: getattr(run, name) for name in RunSummary.__struct_fields__}
    return TrialSummary(**values, number=trial.n, params=trial.evaluated)


def _pending(directory: Path, facts: Facts, trial: TrialCreated) -> RunSummary:
    return RunSummary(
        path=str(directory),
        name=facts.name,
        trial_id=trial.id,
        trainer=facts.trainable,
        status="pending",
        alive=False,
        num_workers=1,
        started=0.0,
        ended=None,
        reached=Reached(),
    )


def _ended(directory: Path, facts: Facts, trial: TrialCreated, end: TrialEnded) -> RunSummary:
    row = end.metrics
    metrics = {**({} if isinstance(end.judged_by, UnsetType) else end.judged_by), **reported(row)}
    iteration, seconds = row.get(TRAINING_ITERATION), row.get("time_total_s")
    return msgspec.structs.replace(
        _pending(directory, facts, trial),
        status=end.status,
        started=trial.time,
        ended=end.time,
        error=end.error,
        reached=Reached(
            iteration=iteration if isinstance(iteration, int) else 0,
            time_total_s=seconds if isinstance(seconds, int | float) else 0.0,
            attempts=1 if row else 0,
            metrics=metrics,
            error=end.error,
        ),
    )


def load_grid(path: str | os.PathLike[str]) -> ResultGrid:
    """The results of the experiment at `path`."""
    root = resolve_storage(path)
    if isinstance(root, str):
        raise RestoreError(f"{root}: an experiment is read from a local directory; copy it to one first.")
    return grid_of(root, newest_journal(root))


def grid_of(root: Path, journal: Path) -> ResultGrid:
    records = SearchRecords(journal)
    for warning in unrecorded_trials(journal, records):
        warn_at_users_line(warning)
    facts = records.facts
    outcomes = [_outcome(root, facts, trial, end) for trial, end in records.trials()]
    return ResultGrid(outcomes, experiment_path=root, metric=facts.metric, mode=facts.mode)


def _outcome(root: Path, facts: Facts, record: TrialCreated, end: TrialEnded | None) -> TrialOutcome:
    directory, evaluated = root / record.dir, from_description(record.evaluated)
    trial = Trial(
        trial_id=record.id,
        trainable_name=facts.trainable,
        local_path=str(directory),
        experiment_id=facts.id,
        experiment_name=facts.name,
        experiment_tag=record.tag,
        config=record.config if record.config is not None else _plain_part(evaluated),
        evaluated_params=evaluated,
    )
    if end is None:
        return _unfinished(trial, directory)
    return outcome_of_record(trial, end)


def _plain_part(evaluated: dict[str, Any]) -> dict[str, Any]:
    """Of a configuration that could not be written down: what the search chose, as far as it is plain data."""
    is_plain = {name: not (isinstance(value, dict) and "$index" in value) for name, value in evaluated.items()}
    return nested({name: value for name, value in evaluated.items() if is_plain[name]})


def _unfinished(trial: Trial, directory: Path) -> TrialOutcome:
    """Of a trial that had not ended only its own files tell how far it was."""
    try:
        result = load_result(directory)
    except (RestoreError, StorageError) as error:
        began = os.path.lexists(directory)
        result = Result(log_dir=directory, status="unfinished", warnings=[str(error)] if began else [])
    trial.last_result = result.metrics
    return TrialOutcome(trial, result.metrics, result.status, result.error, lambda: result)
