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

from paceline.air.constants import AUTOFILLED_KEYS
from paceline.air.errors import ConfigError
from paceline.air.metrics import flattened
from paceline.run.nested import nested_get

Row = Mapping[str, Any]
Mode = Literal["min", "max"]

_MISSING = object()


class Stopper(ABC):
    """Decides when training has gone far enough."""

    @abstractmethod
    def __call__(self, trial_id: str, result: Row) -> bool:
        """True if the trial shall stop after this row."""

    @abstractmethod
    def stop_all(self) -> bool:
        """True if every trial shall stop."""


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


class DictStopper(Stopper):
    """Stops a trial when one of several metrics reaches its threshold; ``a/b`` names a nested one."""

    def __init__(self, thresholds: Mapping[str, float]) -> None:
        for key, threshold in thresholds.items():
            if not isinstance(key, str) or not isinstance(threshold, (int, float)):
                raise ConfigError(
                    f"stop= maps names of metrics to numbers; {key!r}: {threshold!r} is not such a pair. "
                    "Training stops when the metric is greater than or equal to the number."
                )
        self._thresholds = dict(thresholds)

    def __call__(self, trial_id: str, result: Row) -> bool:
        # All are looked at, so that a misspelt name shows even if another metric stops the trial.
        reached = [self._reached(key, threshold, result) for key, threshold in self._thresholds.items()]
        return any(reached)

    def _reached(self, key: str, threshold: float, result: Row) -> bool:
        value = metric_of(result, key)
        if value is None:
            return False
        if not isinstance(value, (int, float)):
            raise ConfigError(
                f"stop={{{key!r}: {threshold!r}}} compares a number, but the reported {key!r} is {value!r}. "
                "Use stop=function(trial_id, result) for other conditions."
            )
        return value >= threshold

    def stop_all(self) -> bool:
        return False


class MaximumIterationStopper(Stopper):
    """Stops each trial at its iteration `max_iter`.

    The row says which iteration it is: rows that a retry reports again count once.
    """

    def __init__(self, max_iter: int) -> None:
        self._max_iter = max_iter

    def __call__(self, trial_id: str, result: Row) -> bool:
        return _number_of(result, "training_iteration") >= self._max_iter

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
        self._rows: dict[str, int] = defaultdict(int)
        self._values: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=num_results))

    def __call__(self, trial_id: str, result: Row) -> bool:
        value = _number_of(result, self._metric)
        self._rows[trial_id] += 1
        self._values[trial_id].append(value)
        if self._rows[trial_id] < self._grace_period or len(self._values[trial_id]) < self._num_results:
            return False
        if self._threshold is not None and not _good(value, self._threshold, self._mode):
            return False
        return _deviation(self._values[trial_id]) <= self._std

    def stop_all(self) -> bool:
        return False


class ExperimentPlateauStopper(Stopper):
    """Stops everything once the best values seen no longer differ.

    The `top` best values of all trials are compared: when their standard deviation is at
    most `std` for more than `patience` rows in a row, no improvement is in sight.
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
        self._best: list[float] = []
        self._rows_at_rest = 0

    def __call__(self, trial_id: str, result: Row) -> bool:
        value = _number_of(result, self._metric)
        if not math.isnan(value):
            self._best = sorted([*self._best, value], reverse=self._mode == "max")[: self._top]
        at_rest = len(self._best) == self._top and _deviation(self._best) <= self._std
        self._rows_at_rest = self._rows_at_rest + 1 if at_rest else 0
        return self.stop_all()

    def stop_all(self) -> bool:
        return self._rows_at_rest > self._patience


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


def metric_of(result: Row, key: str) -> Any:
    """A row's value under `key`, where ``a/b`` reaches into nested dictionaries.

    A name that is not there is most likely a slip, which would otherwise never stop.
    """
    value = nested_get(result, key, _MISSING)
    if value is _MISSING:
        users_first = sorted(flattened(result), key=lambda name: name.split("/")[0] in AUTOFILLED_KEYS)
        names = ", ".join(users_first)
        raise ConfigError(f"stop= names the metric {key!r}, which was not reported. There are: {names}.")
    return value


def _number_of(result: Row, key: str) -> float:
    value = metric_of(result, key)
    return float(value) if isinstance(value, (int, float)) else math.nan


def _good(value: float, threshold: float, mode: Mode | None) -> bool:
    return value <= threshold if mode == "min" else value >= threshold


def _deviation(values: Sequence[float] | deque[float]) -> float:
    """Standard deviation of all given values; NaN or infinite ones never count as at rest."""
    if not all(map(math.isfinite, values)):
        return math.inf
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
