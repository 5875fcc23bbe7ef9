"""TrialOutcome: how one trial ended, made of its result or of its files, and what can be asked about its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.air.constants import TRAINING_ITERATION
from paceline.air.errors import RestoreError, StorageError, TrainingFailedError
from paceline.air.metrics import flattened, nested_get
from paceline.air.result import Result, Status
from paceline.air.secrets import masked
from paceline.air.settings import plain_config
from paceline.run.history import JournalHistory, load_result
from paceline.run.spec import Trial
from paceline.storage.run_dir import RunDir

if TYPE_CHECKING:
    from paceline.tune.experiment.records import TrialEnded
    from paceline.tune.experiment.trials import TrialRun

Scope = Literal["last", "avg", "last-5-avg", "last-10-avg", "all"]
SCOPES = ("last", "avg", "last-5-avg", "last-10-avg", "all")
_ROWS_IN_MEAN = {"last-5-avg": 5, "last-10-avg": 10, "avg": 0}
"""0: all."""


@dataclass(eq=False)
class TrialOutcome:
    """How one trial ended; its files are read when they are needed."""

    trial: Trial
    metrics: dict[str, Any]
    """The last row; empty if the trial never reported."""
    status: Status
    error: BaseException | None
    load: Callable[[], Result] = field(repr=False)

    def __post_init__(self) -> None:
        if self.error is not None:
            self.error.trial_id = self.trial.trial_id  # type: ignore[attr-defined]  # a list of errors says whose

    @property
    def path(self) -> Path:
        """The trial's directory."""
        return Path(self.trial.local_path)

    @cached_property
    def result(self) -> Result:
        result = self.load()
        result.metrics.setdefault("config", self.trial.config)  # also if the trial never reported
        return result

    def rows(self) -> Iterable[dict[str, Any]]:
        """Every row of the trial. Neither they nor a Result read for them are kept: there may be many trials."""
        if not self.metrics:
            return ()
        loaded: Result = self.__dict__.get("result") or self.load()
        return loaded._history.rows() if loaded._history else ()

    def value(self, metric: str, mode: str, scope: Scope = "last", *, finite_only: bool = True) -> float:
        """The number that the trial is judged by; NaN if it never reported one."""
        if scope == "last":
            return self._last_value(metric)
        values = [value for row in self.rows() if (value := number_at(row, metric)) is not None]
        if scope == "all":
            usable = filter(math.isfinite if finite_only else _is_not_nan, values)
            return (max if mode == "max" else min)(usable, default=math.nan)
        values = values[-_ROWS_IN_MEAN[scope] :]
        return sum(values) / len(values) if values else math.nan

    def _last_value(self, metric: str) -> float:
        """A last row without the metric is no reason to pass over the trial, only one to read the rows before."""
        value = number_at(self.metrics, metric)
        if value is None and self.metrics.get(TRAINING_ITERATION, 1) != 1:
            for row in self.rows():
                value = value if (reported := number_at(row, metric)) is None else reported
        return math.nan if value is None else value

    def best_row(self, metric: str, mode: str) -> dict[str, Any]:
        """The first of the best rows; the last row if none has a number for the metric."""
        best, best_score = self.metrics, -math.inf
        for row in self.rows():
            value = number_at(row, metric)
            score = -math.inf if value is None else value if mode == "max" else -value
            if score > best_score:
                best, best_score = row, score
        return best

    def columns(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row as columns of a table, with the trial's configuration; an empty dict has none."""
        columns = flattened({key: value for key, value in row.items() if key != "config"})
        columns["trial_id"] = self.trial.trial_id
        columns.update(flattened({"config": masked(self.trial.config)}))
        columns["logdir"] = str(self.path)
        return {name: value for name, value in columns.items() if not (isinstance(value, dict) and not value)}


def number_at(row: dict[str, Any], metric: str) -> float | None:
    """The value of a metric (nested: "a/b"); None if it is absent or no number."""
    value = nested_get(row, metric)
    return float(value) if isinstance(value, int | float) else None


def _is_not_nan(value: float) -> bool:
    return not math.isnan(value)


def outcome_of_result(trial: Trial, result: Result) -> TrialOutcome:
    """The outcome of a run that this driver has carried out."""
    metrics = result.metrics if TRAINING_ITERATION in result.metrics else {}
    return TrialOutcome(trial, metrics, result.status, result.error, lambda: result)


def outcome_of_record(trial: Trial, end: TrialEnded, filesystem: Any = None) -> TrialOutcome:
    """How a trial of an earlier driver ended, as the experiment's journal says; the trial is as it was then."""
    failed = end.status == "failed"
    trial.status, trial.outcome = "ERROR" if failed else "TERMINATED", end.status
    metrics = {**end.metrics, "config": trial.config} if end.metrics else {}
    trial.last_result = metrics or trial.last_result
    error = TrainingFailedError(end.error) if failed else None
    return outcome_from_files(trial, end.status, metrics, error, filesystem)


def outcome_from_files(
    trial: Trial, status: Status, metrics: dict[str, Any], error: BaseException | None = None, filesystem: Any = None
) -> TrialOutcome:
    """The outcome of a trial of an earlier driver; its files are read when somebody looks at them.

    `metrics` is the last row according to the experiment: the trial's own journal may be damaged.
    """

    def load() -> Result:
        directory = Path(trial.local_path)
        is_here = RunDir(directory).journal.is_file()
        try:
            result = load_result(directory if is_here or "://" not in trial.path else trial.path, filesystem)
        except (RestoreError, StorageError) as problem:  # a trial that never started has no files
            result = Result(log_dir=directory, warnings=[str(problem)] if metrics else [])
        if result.metrics.get("_training_iteration", 0) < metrics.get("_training_iteration", 0):
            result.metrics = dict(metrics)
        written = result.metrics.get("config")
        if result.metrics and (not written or written == plain_config(trial.config)):
            result.metrics["config"] = trial.config  # a file has no tuples, and no objects
        result.status, result.error = status, error
        return result

    return TrialOutcome(trial, metrics, status, error, load)


def last_metrics(trial_run: TrialRun, *, done: bool = True) -> dict[str, Any]:
    """The last row of a trial that is not running, from its own journal: that of the experiment may keep parts only."""
    row = JournalHistory(RunDir(trial_run.directory).journal).last_row() if trial_run.has_files else None
    return {**row, "config": trial_run.trial.config, "done": done} if row else {}


def outcome_without_run(trial_run: TrialRun, status: Status, error: BaseException | None = None) -> TrialOutcome:
    """The outcome of a trial of which nothing was started, or nothing more than a failed start."""
    metrics = dict(trial_run.trial.last_result) if trial_run.seen else {}
    result = Result(metrics=metrics, error=error, log_dir=trial_run.directory, status=status)
    return TrialOutcome(trial_run.trial, metrics, status, error, lambda: result)


def outcome_so_far(trial_run: TrialRun) -> TrialOutcome:
    """What a trial that has not ended has reached."""
    if trial_run.has_files:
        return outcome_from_files(trial_run.trial, "unfinished", last_metrics(trial_run, done=False))
    return outcome_without_run(trial_run, "unfinished")


def original_error(error: Exception) -> Exception:
    """What the trial itself raised, as far as it can be rebuilt here; the full report becomes a note of it."""
    cause = error.__cause__
    if not isinstance(cause, Exception):
        return error
    cause.add_note(str(error))
    return cause
