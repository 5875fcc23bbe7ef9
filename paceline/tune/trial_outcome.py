"""TrialOutcome: how one trial ended, and what can be asked about its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from paceline.air.constants import TRAINING_ITERATION
from paceline.air.metrics import flattened, nested_get
from paceline.air.result import Result, Status
from paceline.air.secrets import masked
from paceline.run.spec import Trial

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
    path: Path
    load: Callable[[], Result] = field(repr=False)

    def __post_init__(self) -> None:
        if self.error is not None:
            self.error.trial_id = self.trial.trial_id  # type: ignore[attr-defined]  # a list of errors says whose

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
