"""When to stop: `RunConfig(stop=...)` as a dictionary, a function or a Stopper.

A stopper sees rank 0's row of each report, in order, in the driver. `stopper(trial_id, row)`
says whether this trial has had enough; `stop_all()` whether the whole experiment has.
"""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from paceline.air.checks import near_miss
from paceline.air.constants import AUTOFILLED_KEYS, TRAINING_ITERATION
from paceline.air.errors import ConfigError
from paceline.air.metrics import flattened, nested_get

Row = Mapping[str, Any]
Mode = Literal["min", "max"]

_MISSING = object()
_ROWS_TO_WAIT = 10
"""So many rows a trial may report before a metric of its stop criterion must have been among them."""


class Stopper(ABC):
    """Decides when training has gone far enough."""

    @abstractmethod
    def __call__(self, trial_id: str, result: Row) -> bool:
        """True if the trial shall stop after this row."""

    @abstractmethod
    def stop_all(self) -> bool:
        """True if every trial shall stop."""

    def never_reported(self, trial_id: str, last_row: Row) -> str | None:
        """Asked when a trial has ended: what it never reported although the criterion is about it; None if nothing."""
        return None


class NoopStopper(Stopper):
    """Never stops."""

    def __call__(self, trial_id: str, result: Row) -> bool:
        return False

    def stop_all(self) -> bool:
        return False


class CombinedStopper(Stopper):
    """Stops as soon as one of several stoppers does.

    Every one of them sees every row, because some keep a history.
    """

    def __init__(self, *stoppers: Stopper) -> None:
        for stopper in stoppers:
            if not isinstance(stopper, Stopper):
                raise ConfigError(f"CombinedStopper takes Stopper instances, not {stopper!r}.")
        self._stoppers = stoppers

    def __call__(self, trial_id: str, result: Row) -> bool:
        decisions = [stopper(trial_id, result) for stopper in self._stoppers]
        return any(decisions)

    def stop_all(self) -> bool:
        return any(stopper.stop_all() for stopper in self._stoppers)

    def never_reported(self, trial_id: str, last_row: Row) -> str | None:
        told = [stopper.never_reported(trial_id, last_row) for stopper in self._stoppers]
        return next(filter(None, told), None)


class FunctionStopper(Stopper):
    """Stops a trial when `function(trial_id, result)` returns something true."""

    def __init__(self, function: Callable[[str, Any], Any]) -> None:
        if not callable(function) or isinstance(function, type):
            raise ConfigError(f"FunctionStopper takes a function (trial_id, result) -> bool, not {function!r}.")
        self._function = function

    def __call__(self, trial_id: str, result: Row) -> bool:
        return bool(self._function(trial_id, dict(result)))  # its own copy: others still read the row

    def stop_all(self) -> bool:
        return False


class _Awaited:
    """The metrics that a stopper reads.

    A row may be without one, as where validation comes every fifth epoch. But a trial that never reports it would
    never stop: most likely the name is a slip.
    """

    def __init__(self) -> None:
        self._unseen: dict[str, set[str]] = {}
        """By trial, what no row had so far. Trials of which the first row was not seen, as after a restore, are not
        in it: they may have reported it before."""

    def value(self, trial_id: str, result: Row, key: str) -> Any:
        """The row's value under `key`, where ``a/b`` reaches into nested dictionaries; _MISSING if it has none."""
        value = nested_get(result, key, _MISSING)
        if value is not _MISSING:
            if self._unseen:
                self._unseen.get(trial_id, set()).discard(key)
            return value
        iteration = result.get(TRAINING_ITERATION, 1)
        if iteration == 1:
            self._unseen.setdefault(trial_id, set()).add(key)
        elif iteration >= _ROWS_TO_WAIT and key in self._unseen.get(trial_id, ()):
            raise ConfigError(_not_reported(key, result, f"in {iteration} rows of trial {trial_id}"))
        return _MISSING

    def never_reported(self, trial_id: str, last_row: Row) -> str | None:
        unseen = self._unseen.pop(trial_id, None)
        return _not_reported(min(unseen), last_row, "by a trial that has ended") if unseen else None


class DictStopper(Stopper):
    """Stops a trial when one of several metrics reaches its threshold; ``a/b``, or a nested dict, names a nested one.

    Rows without the metric are passed over. That a trial has reported ten of them, and never the metric, is an error.
    """

    def __init__(self, thresholds: Mapping[str, Any]) -> None:
        thresholds = flattened(thresholds)
        for key, threshold in thresholds.items():
            if not isinstance(key, str) or not isinstance(threshold, (int, float)):
                raise ConfigError(
                    f"stop= maps names of metrics to numbers; {key!r}: {threshold!r} is not such a pair. "
                    "Training stops when the metric is greater than or equal to the number."
                )
        self._thresholds = dict(thresholds)
        self._awaited = _Awaited()

    def __call__(self, trial_id: str, result: Row) -> bool:
        # All are looked at, so that a misspelt name shows even if another metric stops the trial.
        reached = [self._reached(trial_id, key, threshold, result) for key, threshold in self._thresholds.items()]
        return any(reached)

    def _reached(self, trial_id: str, key: str, threshold: float, result: Row) -> bool:
        value = self._awaited.value(trial_id, result, key)
        if value is None or value is _MISSING:
            return False
        if not isinstance(value, (int, float)):
            raise ConfigError(
                f"stop={{{key!r}: {threshold!r}}} compares a number, but the reported {key!r} is {value!r}. "
                "Use stop=function(trial_id, result) for other conditions."
            )
        return value >= threshold

    def stop_all(self) -> bool:
        return False

    def never_reported(self, trial_id: str, last_row: Row) -> str | None:
        return self._awaited.never_reported(trial_id, last_row)


class MaximumIterationStopper(Stopper):
    """Stops each trial at its iteration `max_iter`.

    The row says which iteration it is: rows that a retry reports again count once.
    """

    def __init__(self, max_iter: int) -> None:
        self._max_iter = max_iter

    def __call__(self, trial_id: str, result: Row) -> bool:
        return _number(result.get(TRAINING_ITERATION)) >= self._max_iter

    def stop_all(self) -> bool:
        return False


class TimeoutStopper(Stopper):
    """Stops everything once `timeout` has passed since the stopper was first asked."""

    def __init__(self, timeout: float | timedelta) -> None:
        self._timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        if not self._timeout_s > 0:
            raise ConfigError(f"TimeoutStopper needs a time above zero, not {timeout!r}.")
        self._started_at: float | None = None

    def __call__(self, trial_id: str, result: Row) -> bool:
        return self.stop_all()

    def stop_all(self) -> bool:
        now = time.monotonic()
        if self._started_at is None:
            self._started_at = now
        return now - self._started_at >= self._timeout_s


class TrialPlateauStopper(Stopper):
    """Stops a trial whose metric has come to rest.

    At rest means: the standard deviation of the last `num_results` values is at most
    `std`. Nothing stops within the first `grace_period` rows, nor before the metric is
    on the good side of `metric_threshold`, if there is one (`mode` says which side).
    Rows without the metric do not count.
    """

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: Mode | None = None,
    ) -> None:
        if metric_threshold is not None and mode not in ("min", "max"):
            raise ConfigError(f"metric_threshold needs mode='min' or mode='max', not mode={mode!r}.")
        self._metric = metric
        self._std = std
        self._num_results = num_results
        self._grace_period = grace_period
        self._threshold = metric_threshold
        self._mode = mode
        self._awaited = _Awaited()
        self._rows: dict[str, int] = defaultdict(int)
        self._values: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=num_results))

    def __call__(self, trial_id: str, result: Row) -> bool:
        given = self._awaited.value(trial_id, result, self._metric)
        if given is _MISSING:
            return False
        value = _number(given)
        self._rows[trial_id] += 1
        self._values[trial_id].append(value)
        if self._rows[trial_id] < self._grace_period or len(self._values[trial_id]) < self._num_results:
            return False
        if self._threshold is not None and not _good(value, self._threshold, self._mode):
            return False
        return _deviation(self._values[trial_id]) <= self._std

    def stop_all(self) -> bool:
        return False

    def never_reported(self, trial_id: str, last_row: Row) -> str | None:
        return self._awaited.never_reported(trial_id, last_row)


class ExperimentPlateauStopper(Stopper):
    """Stops everything once the best values seen no longer differ.

    The `top` best values of all trials are compared: when their standard deviation is at
    most `std` for more than `patience` rows in a row, no improvement is in sight.
    Rows without the metric do not count.
    """

    def __init__(self, metric: str, std: float = 0.001, top: int = 10, mode: Mode = "min", patience: int = 0) -> None:
        if mode not in ("min", "max"):
            raise ConfigError(f"mode must be 'min' or 'max', not {mode!r}.")
        if top <= 1:
            raise ConfigError(f"top must be at least 2, not {top!r}: one value alone has no deviation.")
        if patience < 0:
            raise ConfigError(f"patience must not be negative, not {patience!r}.")
        self._metric = metric
        self._std = std
        self._top = top
        self._mode = mode
        self._patience = patience
        self._awaited = _Awaited()
        self._best: list[float] = []
        self._rows_at_rest = 0

    def __call__(self, trial_id: str, result: Row) -> bool:
        given = self._awaited.value(trial_id, result, self._metric)
        if given is _MISSING:
            return self.stop_all()
        value = _number(given)
        if not math.isnan(value):
            self._best = sorted([*self._best, value], reverse=self._mode == "max")[: self._top]
        at_rest = len(self._best) == self._top and _deviation(self._best) <= self._std
        self._rows_at_rest = self._rows_at_rest + 1 if at_rest else 0
        return self.stop_all()

    def stop_all(self) -> bool:
        return self._rows_at_rest > self._patience

    def never_reported(self, trial_id: str, last_row: Row) -> str | None:
        return self._awaited.never_reported(trial_id, last_row)


def make_stopper(stop: object) -> Stopper | None:
    """The stopper that `RunConfig(stop=...)` describes; None if nothing was asked for.

    A Stopper is copied: what it learns in one run must not count in the next.
    """
    if stop is None:
        return None
    if isinstance(stop, Stopper):
        return _fresh(stop)
    if isinstance(stop, Mapping):
        return DictStopper(stop) if stop else None
    if isinstance(stop, type) and issubclass(stop, Stopper):
        raise ConfigError(f"stop={stop.__name__} is a class. Give an instance: stop={stop.__name__}(...).")
    if callable(stop) and not isinstance(stop, type):
        return FunctionStopper(stop)
    raise ConfigError(
        f"stop={stop!r} is not understood. Give {{metric: threshold}}, a function (trial_id, result) -> bool, "
        "or a Stopper."
    )


def _fresh(stopper: Stopper) -> Stopper:
    try:
        return copy.deepcopy(stopper)
    except Exception:  # it holds a lock, an open file or the like
        return stopper


def _not_reported(key: str, row: Row, where: str) -> str:
    own = [name for name in flattened(row) if name.split("/")[0] not in AUTOFILLED_KEYS]
    known = [*own, TRAINING_ITERATION, "time_total_s"]
    return f"stop= names the metric {key!r}, which was not reported {where}{near_miss(key, known)}"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _good(value: float, threshold: float, mode: Mode | None) -> bool:
    return value <= threshold if mode == "min" else value >= threshold


def _deviation(values: Sequence[float] | deque[float]) -> float:
    """Standard deviation of all given values; NaN or infinite ones never count as at rest."""
    if not all(map(math.isfinite, values)):
        return math.inf
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
