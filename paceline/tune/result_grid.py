"""ResultGrid: what the trials of an experiment reached, and the best of them.

A grid holds the last row of every trial and reads nothing else until it is asked: the Result of a
trial when that trial is looked at, all rows of the trials when a question is about all rows.
"""

from __future__ import annotations

import copy
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, overload

from paceline.air.checks import check_choice, near_miss
from paceline.air.constants import AUTOFILLED_KEYS, DEFAULT_METRIC
from paceline.air.errors import ConfigError, TuneError
from paceline.air.metrics import flattened, nested_get
from paceline.air.result import Result
from paceline.tune.trial_outcome import SCOPES, Scope, TrialOutcome, number_at

if TYPE_CHECKING:
    import pandas

    from paceline.tune.plots import PlotKind

__all__ = ["Mode", "ResultGrid", "TrialOutcome"]

Mode = Literal["max", "min"]
_MODES = ("max", "min")
_MOST_NAMES_SHOWN = 20
_ABSENT = object()


class ResultGrid:
    """The results of all trials, in the order in which the trials were made."""

    def __init__(
        self,
        outcomes: Sequence[TrialOutcome],
        *,
        experiment_path: str | os.PathLike[str],
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
        how_to_continue: str = "",
    ) -> None:
        """`metric` and `mode` are those of TuneConfig; lists of them if there are several objectives."""
        self.how_to_continue = how_to_continue
        """The call that continues a search that did not finish, or runs its failed trials again."""
        self._outcomes = list(outcomes)
        self._experiment_path = os.fspath(experiment_path)
        self.metric = metric if isinstance(metric, str) else None
        self.mode = cast("Mode | None", mode if isinstance(mode, str) else None)
        several = metric is not None and not isinstance(metric, str)
        self._objectives: dict[str, str] = dict(zip(metric or (), mode or (), strict=True)) if several else {}

    @property
    def experiment_path(self) -> str:
        """The directory that holds the trials' directories."""
        return self._experiment_path

    @property
    def path(self) -> str:
        """The same, by the name that a Result has for its place."""
        return self._experiment_path

    @property
    def outcomes(self) -> list[TrialOutcome]:
        """The trials with their last rows: all that is known without reading their files."""
        return list(self._outcomes)

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
            return self._only(self._outcomes[index])
        return self._outcomes[index].result

    def _only(self, outcomes: list[TrialOutcome]) -> ResultGrid:
        part = copy.copy(self)
        part._outcomes = outcomes
        return part

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
        *,
        include_failed: bool = False,
    ) -> Result:
        """The result of the trial with the best value of a metric (nested: "a/b").

        A trial's value is the last one it reported, or with `scope` the mean of all ("avg"), of the last five or
        ten ("last-5-avg", "last-10-avg"), or the best of all ("all"). `metric` and `mode` default to those of
        TuneConfig. Trials that failed count, with what they reported, only if include_failed=True. NaN never counts,
        and infinite values do only with filter_nan_and_inf=False. The only trial of a grid is its best.
        """
        check_choice(scope, "scope", SCOPES)
        if mode is not None:
            check_choice(mode, "mode", _MODES)
        if len(self._outcomes) == 1 and (include_failed or self._outcomes[0].error is None):
            return self._outcomes[0].result
        return self.best_outcome(metric, mode, scope, filter_nan_and_inf, include_failed=include_failed).result

    def best_outcome(
        self,
        metric: str | None = None,
        mode: Mode | None = None,
        scope: Scope = "last",
        filter_nan_and_inf: bool = True,
        *,
        include_failed: bool = False,
    ) -> TrialOutcome:
        """The trial that get_best_result() would choose of several, without reading its files."""
        check_choice(scope, "scope", SCOPES)
        eligible = [outcome for outcome in self._outcomes if include_failed or outcome.error is None]
        if self._outcomes and not eligible:
            raise TuneError(self._why_all_failed())
        name, direction = self._asked(metric, mode)
        best = _best_of(eligible, name, direction, scope, filter_nan_and_inf)
        if best is None:
            passed_over = len(self._outcomes) - len(eligible)
            more = f" Not counted: {passed_over} failed (see .errors)." if passed_over else ""
            raise TuneError(self._only(eligible)._why_no_trial_counts(name) + more)
        return best

    def get_dataframe(self, filter_metric: str | None = None, filter_mode: Mode | None = None) -> pandas.DataFrame:
        """One row per trial: its last, or with `filter_metric` the one in which that metric was best.

        The columns are the metrics, "config/<a>/<b>" for the configuration, `trial_id` and `logdir`.
        """
        import pandas

        if filter_metric is None and filter_mode is None:
            rows = [outcome.columns(outcome.metrics) for outcome in self._outcomes]
        else:
            metric, mode = self._asked(filter_metric, filter_mode)
            best = [outcome.best_row(metric, mode) for outcome in self._outcomes]
            if any(best) and not any(nested_get(row, metric, _ABSENT) is not _ABSENT for row in best):
                raise TuneError(self._why_no_trial_counts(metric))
            rows = [outcome.columns(row) for outcome, row in zip(self._outcomes, best, strict=True)]
        names = dict.fromkeys(name for row in rows for name in row)
        # Metrics first, even if the first trial reported none.
        ordered = sorted(names, key=lambda name: (name == "logdir", name.startswith("config/")))
        return pandas.DataFrame(rows, columns=ordered)

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
        """Save a plot of how much of the value's variance each parameter explains, judged by at most 1,000 trials."""
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
        mode: str | None,
        params: Sequence[str] | None,
    ) -> Path:
        from paceline.tune.plots import Observation, save_plot

        metric, mode = self._asked(metric, mode)
        values = [outcome.value(metric, mode) for outcome in self._outcomes]
        observations = [
            Observation(outcome.trial.evaluated_params, value if math.isfinite(value) else None)
            for outcome, value in zip(self._outcomes, values, strict=True)
        ]
        if not any(map(math.isfinite, values)):
            raise TuneError(self._why_no_trial_counts(metric))
        return save_plot(kind, Path(path), observations, metric=metric, mode=mode, params=params)

    def _asked(self, metric: str | None, mode: str | None) -> tuple[str, str]:
        """The metric and mode to go by: those given, else the experiment's."""
        metric = metric or self.metric
        if metric is None and not self._objectives and DEFAULT_METRIC in self._reported_names():
            metric = DEFAULT_METRIC
        if metric is None and self._objectives:
            raise ConfigError(
                f"The search has several objectives: {', '.join(self._objectives)}. No trial is the best by all of "
                "them; say by which with metric=."
            )
        if metric is None:
            raise ConfigError(
                "metric is neither given here nor in TuneConfig, so there is no telling which trial is best. "
                f"Pass metric=.{self._what_was_reported()}"
            )
        mode = mode or self._objectives.get(metric) or self.mode
        if mode is None:
            raise ConfigError(f"mode is neither given here nor in TuneConfig: pass 'min' or 'max' for {metric!r}.")
        check_choice(mode, "mode", _MODES)
        return metric, mode

    def _why_all_failed(self) -> str:
        first = (str(self.errors[0]).splitlines() or [type(self.errors[0]).__name__])[0]
        which = "The only trial" if len(self._outcomes) == 1 else f"All {len(self._outcomes)} trials"
        return (
            f"{which} failed, so none is the best: {first} All errors are in .errors; include_failed=True compares "
            "what was reported before."
        )

    def _why_no_trial_counts(self, metric: str) -> str:
        if not self._outcomes:
            return "The experiment has no trials."
        names = self._reported_names()
        texts = [value for outcome in self._outcomes if isinstance(value := nested_get(outcome.metrics, metric), str)]
        if texts:
            return f"No trial has a number for {metric!r}: it is text, such as {texts[0]!r}. Report float(value)."
        if metric in names:
            return f"No trial has a finite number for {metric!r}: NaN and infinite values do not count."
        if not names:
            return "No trial reported anything" + (f"; {self.num_errors} failed (see .errors)." if self.errors else ".")
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
        best, value = self._best_of_last_rows()
        if best is not None:
            lines.append(f"best={best.trial.trial_id} with {self.metric}={value:g} ({self.mode})")
        lines.append(f"path={self._experiment_path!r}")
        return "ResultGrid(\n  " + ",\n  ".join(lines) + ",\n)"

    def _repr_html_(self) -> str:
        from paceline.tune.result_grid_html import grid_html

        return grid_html(self)

    def _best_of_last_rows(self) -> tuple[TrialOutcome | None, float]:
        """The best trial and its value, as far as they can be told without reading a file."""
        if self.metric is None or self.mode is None:
            return None, math.nan
        sound = [outcome for outcome in self._outcomes if outcome.error is None]
        values = [(outcome, number_at(outcome.metrics, self.metric)) for outcome in sound]
        finite = [(outcome, value) for outcome, value in values if value is not None and math.isfinite(value)]
        choose = max if self.mode == "max" else min
        return choose(finite, key=lambda each: each[1], default=(None, math.nan))


def _best_of(
    outcomes: Sequence[TrialOutcome], metric: str, mode: str, scope: Scope, filter_nan_and_inf: bool
) -> TrialOutcome | None:
    """The first of the best; None if no trial has a value that counts."""
    best, best_score = None, -math.inf
    for outcome in outcomes:
        value = outcome.value(metric, mode, scope, finite_only=filter_nan_and_inf)
        if math.isnan(value) or (filter_nan_and_inf and math.isinf(value)):
            continue
        score = value if mode == "max" else -value
        if best is None or score > best_score:
            best, best_score = outcome, score
    return best
