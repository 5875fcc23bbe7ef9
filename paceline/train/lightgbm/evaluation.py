"""The workers' evaluations of a round, made one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError
from paceline.train.lightgbm.metrics import Shares, combined, share_of
from paceline.train.lightgbm.network import gather

if TYPE_CHECKING:
    from lightgbm.callback import CallbackEnv

FIRST = float("-inf")
"""The order of a callback that others come after: they see what it made of the evaluations."""


def make_one(env: CallbackEnv, shares: Callable[[str], Shares]) -> None:
    """Put the values of all rows in the place of this worker's, before other callbacks look at them.

    So all workers stop at the same round, and what is recorded is no single worker's view.
    `shares` says what this worker's part of a dataset counts.
    """
    import numpy as np

    results = env.evaluation_result_list
    if not results:
        return
    own = [(result.metric_value, share_of(result.metric_name, shares(result.dataset_name))) for result in results]
    parts = [np.frombuffer(value).reshape(-1, 2) for value in gather(np.array(own, np.float64).tobytes())]
    if len({len(part) for part in parts}) > 1:
        raise ConfigError("The workers evaluate different numbers of metrics: give all of them the same datasets.")
    for place, result in enumerate(results):
        values = [(float(part[place, 0]), float(part[place, 1])) for part in parts]
        value = combined(result.metric_name, values)
        results[place] = type(result)(result.dataset_name, result.metric_name, value, result.maximize)


def row_of(results: Sequence[Any] | None) -> dict[str, float]:
    """The evaluations as metrics to be reported."""
    return {f"{dataset}-{metric}": float(value) for dataset, metric, value, *_ in results or ()}
