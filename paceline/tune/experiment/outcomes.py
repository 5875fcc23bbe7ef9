"""From a trial to its outcome: with the result at hand, from the trial's files, and for all trials of a search."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UnsetType

from paceline.air.checks import warn_at_users_line
from paceline.air.constants import TRAINING_ITERATION
from paceline.air.errors import RestoreError, StorageError, TrainingFailedError
from paceline.air.result import Result, Status
from paceline.run.history import JournalHistory, load_result
from paceline.run.spec import Trial
from paceline.storage.run_dir import RunDir, resolve_storage
from paceline.tune.experiment.place import newest_journal
from paceline.tune.experiment.records import (
    Facts,
    SearchRecords,
    TrialAgain,
    TrialChanged,
    TrialCreated,
    TrialEnded,
    unrecorded_trials,
)
from paceline.tune.experiment.trials import TrialRun
from paceline.tune.result_grid import ResultGrid
from paceline.tune.search.space import from_description
from paceline.tune.trial_outcome import TrialOutcome


def outcome_of_result(trial_run: TrialRun, result: Result) -> TrialOutcome:
    """The outcome of a run that this driver has carried out."""
    reported = TRAINING_ITERATION in result.metrics
    metrics = result.metrics if reported else {}
    return TrialOutcome(trial_run.trial, metrics, result.status, result.error, trial_run.directory, lambda: result)


def outcome_from_files(
    trial_run: TrialRun,
    status: Status,
    metrics: dict[str, Any],
    error: BaseException | None = None,
    filesystem: Any = None,
) -> TrialOutcome:
    """The outcome of a trial of an earlier driver; its files are read when somebody looks at them."""
    remote = trial_run.trial.path if "://" in trial_run.trial.path else None

    def load() -> Result:
        result = result_from_files(trial_run.directory, status, metrics, error, remote, filesystem)
        if result.metrics:  # a file has no tuples, and no objects
            result.metrics["config"] = trial_run.trial.config
        return result

    return TrialOutcome(trial_run.trial, metrics, status, error, trial_run.directory, load)


def last_metrics(trial_run: TrialRun, *, done: bool = True) -> dict[str, Any]:
    """The last row of a trial that is not running, from its own journal: that of the experiment may keep parts only."""
    row = JournalHistory(RunDir(trial_run.directory).journal).last_row() if trial_run.has_files else None
    return {**row, "config": trial_run.trial.config, "done": done} if row else {}


def outcome_without_run(trial_run: TrialRun, status: Status, error: BaseException | None = None) -> TrialOutcome:
    """The outcome of a trial of which nothing was started, or nothing more than a failed start."""
    metrics = dict(trial_run.trial.last_result) if trial_run.seen else {}
    result = Result(metrics=metrics, error=error, log_dir=trial_run.directory, status=status)
    return TrialOutcome(trial_run.trial, metrics, status, error, trial_run.directory, lambda: result)


def outcome_so_far(trial_run: TrialRun) -> TrialOutcome:
    """What a trial that has not ended has reached."""
    if trial_run.has_files:
        return outcome_from_files(trial_run, "unfinished", last_metrics(trial_run, done=False))
    return outcome_without_run(trial_run, "unfinished")


def original_error(error: Exception) -> Exception:
    """What the trial itself raised, as far as it can be rebuilt here; the full report becomes a note of it."""
    cause = error.__cause__
    if not isinstance(cause, Exception):
        return error
    cause.add_note(str(error))
    return cause


def result_from_files(
    directory: Path,
    status: Status,
    metrics: Mapping[str, Any],
    error: BaseException | None,
    remote: str | None = None,
    filesystem: Any = None,
) -> Result:
    """The result of a trial that ended like this; a trial that never started has no files.

    `metrics` is the last row according to the experiment: the trial's own journal may be damaged.
    """
    place = remote if remote is not None and not RunDir(directory).journal.is_file() else directory
    try:
        result = load_result(place, filesystem)
    except (RestoreError, StorageError) as problem:
        result = Result(log_dir=directory, warnings=[str(problem)] if metrics else [])
    if result.metrics.get("_training_iteration", 0) < metrics.get("_training_iteration", 0):
        result.metrics = dict(metrics)
    result.status, result.error = status, error
    return result


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
    trial.status, trial.outcome = "ERROR" if failed else "TERMINATED", end.status
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
