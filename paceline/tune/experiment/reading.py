"""Reads what an experiment reached from its directory; nothing is started and nothing written."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UnsetType

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import RestoreError, StorageError, TrainingFailedError
from paceline.air.result import Result
from paceline.run.history import load_result
from paceline.run.trial import Trial
from paceline.storage.run_dir import resolve_storage
from paceline.tune.experiment.outcomes import result_from_files
from paceline.tune.experiment.place import newest_journal
from paceline.tune.experiment.records import (
    Facts,
    SearchRecords,
    TrialAgain,
    TrialChanged,
    TrialCreated,
    TrialEnded,
)
from paceline.tune.experiment.replay import unrecorded_trials
from paceline.tune.result_grid import ResultGrid
from paceline.tune.search.space import from_description
from paceline.tune.trial_outcome import TrialOutcome


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
    facts, trials, ended = records.facts, dict[int, TrialCreated](), dict[int, TrialEnded]()
    for record in records.all:
        match record:
            case TrialCreated():
                trials[record.n] = record
            case TrialChanged() if record.config is not None:
                trials[record.n].config = record.config
            case TrialChanged() if not isinstance(record.evaluated, UnsetType):
                trials[record.n].evaluated = {**trials[record.n].evaluated, **record.evaluated}
            case TrialAgain():
                trials[record.n].dir = record.dir
                ended.pop(record.n, None)
            case TrialEnded():
                ended[record.n] = record
    outcomes = [_outcome(root, facts, trials[number], ended.get(number)) for number in sorted(trials)]
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
    failed = end.status == "failed"
    error = TrainingFailedError(end.error) if failed else None
    trial.status = "ERROR" if failed else "TERMINATED"
    metrics = {**end.metrics, "config": trial.config} if end.metrics else {}
    trial.last_result = metrics
    load = partial(result_from_files, directory, end.status, metrics, error)
    return TrialOutcome(trial, metrics, end.status, error, directory, load)


def _plain_part(evaluated: dict[str, Any]) -> dict[str, Any]:
    """Of a configuration that could not be written down: what the search chose, as far as it is plain data."""
    config: dict[str, Any] = {}
    for name, value in evaluated.items():
        if not (isinstance(value, dict) and "$index" in value):
            *above, last = name.split("/")
            node = config
            for key in above:
                node = node.setdefault(key, {})
            node[last] = value
    return config


def _unfinished(trial: Trial, directory: Path) -> TrialOutcome:
    """Of a trial that had not ended only its own files tell how far it was."""
    try:
        result = load_result(directory)
    except (RestoreError, StorageError) as error:
        began = os.path.lexists(directory)
        result = Result(log_dir=directory, status="unfinished", warnings=[str(error)] if began else [])
    trial.last_result = result.metrics
    return TrialOutcome(trial, result.metrics, result.status, result.error, directory, lambda: result)
