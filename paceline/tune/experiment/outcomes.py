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
from paceline.tune.experiment.trial_run import TrialRun
from paceline.tune.trial_outcome import TrialOutcome


def outcome_of_result(each: TrialRun, result: Result) -> TrialOutcome:
    """The outcome of a run that this driver has carried out."""
    reported = TRAINING_ITERATION in result.metrics
    metrics = result.metrics if reported else {}
    return TrialOutcome(each.trial, metrics, result.status, result.error, each.directory, lambda: result)


def outcome_from_files(
    each: TrialRun,
    status: Status,
    metrics: dict[str, Any],
    error: BaseException | None = None,
    filesystem: Any = None,
) -> TrialOutcome:
    """The outcome of a trial of an earlier driver; its files are read when somebody looks at them."""
    remote = each.trial.path if "://" in each.trial.path else None

    def load() -> Result:
        result = result_from_files(each.directory, status, metrics, error, remote, filesystem)
        if result.metrics:  # a file has no tuples, and no objects
            result.metrics["config"] = each.trial.config
        return result

    return TrialOutcome(each.trial, metrics, status, error, each.directory, load)


def last_metrics(each: TrialRun, *, done: bool = True) -> dict[str, Any]:
    """The last row of a trial that is not running, from its own journal: that of the experiment may keep parts only."""
    rows = JournalHistory(RunDir(each.directory).journal).rows() if each.has_files else []
    return {**rows[-1], "config": each.trial.config, "done": done} if rows else {}


def outcome_without_run(each: TrialRun, status: Status, error: BaseException | None = None) -> TrialOutcome:
    """The outcome of a trial of which nothing was started, or nothing more than a failed start."""
    metrics = dict(each.trial.last_result) if each.seen else {}
    result = Result(metrics=metrics, error=error, log_dir=each.directory, status=status)
    return TrialOutcome(each.trial, metrics, status, error, each.directory, lambda: result)


def outcome_so_far(each: TrialRun) -> TrialOutcome:
    """What a trial that has not ended has reached."""
    if each.has_files:
        return outcome_from_files(each, "unfinished", last_metrics(each, done=False))
    return outcome_without_run(each, "unfinished")


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
