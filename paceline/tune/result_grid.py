"""ResultGrid: what the trials of an experiment reached, and the best of them.

A grid holds the last row of every trial and reads nothing else until it is asked: the Result of a
trial when that trial is looked at, all rows of the trials when a question is about all rows.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from paceline.air.checks import check_choice, near_miss
from paceline.air.constants import AUTOFILLED_KEYS, TRAINING_ITERATION
from paceline.air.errors import ConfigError
from paceline.air.metrics import flattened
from paceline.air.result import Result, Status
from paceline.run.nested import nested_get
from paceline.run.trial import Trial
from paceline.tune.error import TuneError

if TYPE_CHECKING:
    import pandas

    from paceline.tune.plots import PlotKind

Mode = Literal["max", "min"]
Scope = Literal["last", "avg", "last-5-avg", "last-10-avg", "all"]
SCOPES = ("last", "avg", "last-5-avg", "last-10-avg", "all")
_MODES = ("max", "min")
_MOST_NAMES_SHOWN = 20


@dataclass(eq=False)
class TrialOutcome:
    """How one trial ended; its files are read when `result` or `rows` are asked for."""

    trial: Trial
    metrics: dict[str, Any]
    """The last row; empty if the trial never reported."""
    status: Status
    error: BaseException | None
    path: Path
    load: Callable[[], Result] = field(repr=False)

    def __post_init__(self) -> None:
        if self.error is not None:
            self.error.trial_id = self.trial.trial_id  # type: ignore[attr-defined]  # a list of errors says whose

    @cached_property
    def result(self) -> Result:
        return self.load()

    def rows(self) -> list[dict[str, Any]]:
        """Every row of the trial. Neither they nor a Result read for them are kept: there may be many trials."""
        loaded: Result = self.__dict__.get("result") or self.load()
        return loaded._history.rows() if loaded._history else []

    def last_value(self, metric: str) -> Any:
        """The value of `metric` that was reported last; None if it never was.

        A last row without it is no reason to pass over the trial, only one to read the rows before.
        """
        value = nested_get(self.metrics, metric)
        if value is None and self.metrics.get(TRAINING_ITERATION, 1) != 1:
            values = (nested_get(row, metric) for row in reversed(self.rows()))
            value = next((each for each in values if each is not None), None)
        return value


class ResultGrid:
    """The results of all trials, in the order in which the trials were made."""

    def __init__(
        self,
        outcomes: Sequence[TrialOutcome],
        *,
        experiment_path: str | os.PathLike[str],
        metric: str | None = None,
        mode: Mode | None = None,
    ) -> None:
        self._outcomes = list(outcomes)
        self._experiment_path = os.fspath(experiment_path)
        self._metric = metric
        self._mode = mode

    @property
    def experiment_path(self) -> str:
        """The directory that holds the trials' directories."""
        return self._experiment_path

    def __len__(self) -> int:
        return len(self._outcomes)

    def __iter__(self) -> Iterator[Result]:
        return (outcome.result for outcome in self._outcomes)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> ResultGrid: ...
    def __getitem__(self, index: int | slice) -> Result | ResultGrid:
        """The Result of one trial; of a slice, the grid of those trials."""
        if isinstance(index, slice):
            chosen = self._outcomes[index]
            return ResultGrid(chosen, experiment_path=self._experiment_path, metric=self._metric, mode=self._mode)
        return self._outcomes[index].result

    @property
    def errors(self) -> list[BaseException]:
        """What ended the trials that failed, each with its `trial_id`."""
        return [outcome.error for outcome in self._outcomes if outcome.error is not None]

    @property
    def num_errors(self) -> int:
        return len(self.errors)

    @property
    def num_terminated(self) -> int:
        """How many trials came to a good end, stopped early or not."""
        return sum(outcome.status == "finished" for outcome in self._outcomes)

    def get_best_result(
        self,
        metric: str | None = None,
        mode: Mode | None = None,
        scope: Scope = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """The result of the trial with the best value of a metric (nested: "a/b").

        A trial's value is the last one it reported, or with `scope` the mean of all ("avg"), of the last five or
        ten ("last-5-avg", "last-10-avg"), or the best of all ("all"). `metric` and `mode` default to those of
        TuneConfig. A trial that failed counts with what it reported. NaN and infinite values do not count; with
        filter_nan_and_inf=False infinite ones do, and NaN is the worst. The only trial of a grid is its best.
        """
        check_choice(scope, "scope", SCOPES)
        if len(self._outcomes) == 1:
            return self._outcomes[0].result
        metric, mode = self._asked(metric, mode)
        best = self._best(metric, mode, scope, filter_nan_and_inf)
        if best is None:
            raise TuneError(self._why_no_trial_counts(metric))
        return best.result

    def get_dataframe(self, filter_metric: str | None = None, filter_mode: Mode | None = None) -> pandas.DataFrame:
        """One row per trial: its last, or with `filter_metric` the one in which that metric was best.

        The columns are the metrics, "config/<a>/<b>" for the configuration, `trial_id` and `logdir`.
        """
        import pandas

        if filter_metric is None and filter_mode is None:
            rows = [outcome.metrics for outcome in self._outcomes]
        else:
            metric, mode = self._asked(filter_metric, filter_mode)
            rows = [_best_row(outcome, metric, mode) for outcome in self._outcomes]
        return pandas.DataFrame.from_records(
            [_columns(outcome, row) for outcome, row in zip(self._outcomes, rows, strict=True)]
        )

    def plot_optimization_history(
        self, path: str | os.PathLike[str], metric: str | None = None, *, mode: Mode | None = None
    ) -> Path:
        """Save a plot of the values in the order of the trials, with the best so far.

        As for every plot: `path` ends in .html (interactive), .png, .svg or .pdf, and is returned.
        """
        return self._plot("optimization_history", path, metric, mode, None)

    def plot_parallel_coordinates(
        self,
        path: str | os.PathLike[str],
        metric: str | None = None,
        params: Sequence[str] | None = None,
        *,
        mode: Mode | None = None,
    ) -> Path:
        """Save a plot with one line per trial through its parameters and its value."""
        return self._plot("parallel_coordinates", path, metric, mode, params)

    def plot_param_importances(
        self,
        path: str | os.PathLike[str],
        metric: str | None = None,
        params: Sequence[str] | None = None,
        *,
        mode: Mode | None = None,
    ) -> Path:
        """Save a plot of how much of the value's variance each parameter explains."""
        return self._plot("param_importances", path, metric, mode, params)

    def plot_slice(
        self,
        path: str | os.PathLike[str],
        metric: str | None = None,
        params: Sequence[str] | None = None,
        *,
        mode: Mode | None = None,
    ) -> Path:
        """Save a plot of the value over each parameter alone."""
        return self._plot("slice", path, metric, mode, params)

    def plot_contour(
        self,
        path: str | os.PathLike[str],
        metric: str | None = None,
        params: Sequence[str] | None = None,
        *,
        mode: Mode | None = None,
    ) -> Path:
        """Save a plot of the value over pairs of parameters."""
        return self._plot("contour", path, metric, mode, params)

    def _plot(
        self,
        kind: PlotKind,
        path: str | os.PathLike[str],
        metric: str | None,
        mode: Mode | None,
        params: Sequence[str] | None,
    ) -> Path:
        from paceline.tune.plots import Observation, save_plot

        metric, mode = self._asked(metric, mode)
        values = [_number(outcome.last_value(metric)) for outcome in self._outcomes]
        observations = [
            Observation(outcome.trial.evaluated_params, value if math.isfinite(value) else None)
            for outcome, value in zip(self._outcomes, values, strict=True)
        ]
        if not any(map(math.isfinite, values)):
            raise TuneError(self._why_no_trial_counts(metric))
        return save_plot(kind, Path(path), observations, metric=metric, mode=mode, params=params)

    def _asked(self, metric: str | None, mode: Mode | None) -> tuple[str, Mode]:
        """The metric and mode to go by: those given, else the experiment's."""
        metric, mode = metric or self._metric, mode or self._mode
        if metric is None or mode is None:
            lacking = "metric" if metric is None else "mode"
            example = "'loss'" if lacking == "metric" else "'min'"
            raise ConfigError(
                f"{lacking} is neither given here nor in TuneConfig, so there is no telling which trial is best. "
                f"Pass {lacking}=, for example {example}.{self._what_was_reported() if metric is None else ''}"
            )
        check_choice(mode, "mode", _MODES)
        return metric, mode

    def _best(self, metric: str, mode: Mode, scope: Scope, filter_nan_and_inf: bool) -> TrialOutcome | None:
        """The first of the best; None if no trial has a value that counts."""
        best, best_score = None, -math.inf
        for outcome in self._outcomes:
            value = _value_in_scope(outcome, metric, mode, scope, filter_nan_and_inf)
            if value is None or (filter_nan_and_inf and not math.isfinite(value)):
                continue
            score = value if mode == "max" else -value
            score = -math.inf if math.isnan(score) else score
            if best is None or score > best_score:
                best, best_score = outcome, score
        return best

    def _why_no_trial_counts(self, metric: str) -> str:
        if not self._outcomes:
            return "The experiment has no trials."
        names = self._reported_names()
        if metric in names:
            return f"No trial's last row has a finite number for {metric!r}; NaN and infinite values do not count."
        if not names:
            return f"No trial reported anything; {self.num_errors} failed (see .errors)."
        return f"No trial reported {metric!r}{near_miss(metric, names[:_MOST_NAMES_SHOWN])}"

    def _what_was_reported(self) -> str:
        names = [name for name in self._reported_names() if name.split("/")[0] not in AUTOFILLED_KEYS]
        return f" Reported were: {', '.join(names[:_MOST_NAMES_SHOWN])}." if names else ""

    def _reported_names(self) -> list[str]:
        """Names of the last rows, the user's own first; the configuration is no metric."""
        names = {name for outcome in self._outcomes for name in flattened({**outcome.metrics, "config": None})}
        return sorted(names - {"config"}, key=lambda name: (name.split("/")[0] in AUTOFILLED_KEYS, name))

    def __repr__(self) -> str:
        counts = Counter(outcome.status for outcome in self._outcomes)
        ended = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        lines = [f"trials={len(self._outcomes)}{f' ({ended})' if ended else ''}"]
        best = self._best_of_last_rows()
        if best is not None:
            value = nested_get(best.metrics, self._metric or "")
            lines.append(f"best={best.trial.trial_id} with {self._metric}={value!r} ({self._mode})")
        lines.append(f"path={self._experiment_path!r}")
        return "ResultGrid(\n  " + ",\n  ".join(lines) + ",\n)"

    def _best_of_last_rows(self) -> TrialOutcome | None:
        """The best trial as far as it can be told without reading a file."""
        if self._metric is None or self._mode is None:
            return None
        sign = 1.0 if self._mode == "max" else -1.0
        scored = [(sign * _number(nested_get(outcome.metrics, self._metric)), outcome) for outcome in self._outcomes]
        return max((each for each in scored if math.isfinite(each[0])), key=lambda each: each[0], default=(0, None))[1]


def _value_in_scope(
    outcome: TrialOutcome, metric: str, mode: Mode, scope: Scope, filter_nan_and_inf: bool
) -> float | None:
    """The number a trial is judged by; None if it never reported one."""
    if scope == "last":
        value = outcome.last_value(metric)
        return float(value) if isinstance(value, int | float) else None
    if not outcome.metrics:
        return None
    reported = (nested_get(row, metric) for row in outcome.rows())
    values = [float(value) for value in reported if isinstance(value, int | float)]
    if scope == "all":
        usable = math.isfinite if filter_nan_and_inf else _is_not_nan
        return (max if mode == "max" else min)(filter(usable, values), default=values[-1] if values else None)
    if scope != "avg":
        values = values[-5:] if scope == "last-5-avg" else values[-10:]
    return sum(values) / len(values) if values else None


def _best_row(outcome: TrialOutcome, metric: str, mode: Mode) -> dict[str, Any]:
    """The first of a trial's best rows; its last row if none has a number for the metric."""
    if not outcome.metrics:
        return outcome.metrics
    scored = [(value, row) for row in outcome.rows() if not math.isnan(value := _number(nested_get(row, metric)))]
    best = max if mode == "max" else min
    return best(scored, key=lambda each: each[0], default=(0.0, outcome.metrics))[1]


def _columns(outcome: TrialOutcome, row: dict[str, Any]) -> dict[str, Any]:
    metrics = flattened({key: value for key, value in row.items() if key != "config"})
    columns = {**metrics, "trial_id": outcome.trial.trial_id, **flattened({"config": outcome.trial.config})}
    columns["logdir"] = str(outcome.path)
    return {name: value for name, value in columns.items() if not (isinstance(value, dict) and not value)}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _is_not_nan(value: float) -> bool:
    return not math.isnan(value)
