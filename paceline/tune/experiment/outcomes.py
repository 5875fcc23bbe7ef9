"""From a trial to its outcome: while the driver has the result at hand, and from the trial's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.air.constants import TRAINING_ITERATION
from paceline.air.errors import RestoreError, StorageError
from paceline.air.result import Result, Status
from paceline.run.history import JournalHistory, load_result
from paceline.storage.run_dir import RunDir
from paceline.tune.experiment.trials import TrialRun
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
    rows = JournalHistory(RunDir(trial_run.directory).journal).rows() if trial_run.has_files else []
    return {**rows[-1], "config": trial_run.trial.config, "done": done} if rows else {}


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
