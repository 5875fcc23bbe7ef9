"""Which of XGBoost's metrics are exact when each worker evaluates a part of the rows.

XGBoost adds up over the workers what a metric consists of, so means and their roots come out as in one process.
Of AUC each worker computes its own, and the values are averaged, weighted by what each has to compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SUMS = frozenset(
    [
        *("rmse", "rmsle", "mae", "mape", "mphe", "logloss", "error", "merror", "mlogloss", "quantile", "expectile"),
        *("ndcg", "map", "pre", "poisson-nloglik", "gamma-nloglik", "gamma-deviance", "tweedie-nloglik"),
        *("aft-nloglik", "interval-regression-accuracy"),
    ]
)
"""Sums over rows or queries, without what follows an "@"."""


def evaluates_in_parts(params: Mapping[str, Any], train_kwargs: Mapping[str, Any]) -> bool:
    """True if every metric that will be computed is exact for an evaluation set that is dealt to the workers."""
    return not approximate_in_parts(params, train_kwargs)


def approximate_in_parts(params: Mapping[str, Any], train_kwargs: Mapping[str, Any]) -> list[str]:
    """The metrics that will be computed and are not exact where a dataset is dealt to the workers."""
    names = [name for name in _named(params) if name.rstrip("-").partition("@")[0] not in _SUMS]
    if train_kwargs.get("custom_metric") is not None:
        names.append("custom_metric")
    return names


def ranks_rows(params: Mapping[str, Any]) -> bool:
    """True if rows are compared with those of the same query, by the objective or a metric."""
    metrics = {name.rstrip("-").partition("@")[0] for name in _named(params)}
    return str(params.get("objective")).startswith("rank:") or not metrics.isdisjoint(("ndcg", "map", "pre"))


def _named(params: Mapping[str, Any]) -> list[str]:
    """The built-in metrics; the default one of an objective is a sum."""
    given = params.get("eval_metric")
    if given is None:
        return []
    return [str(name) for name in (given if isinstance(given, list | tuple) else [given])]


def latest_values(evals_log: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, Any]:
    """The values of the newest round, as "<dataset>-<metric>"."""
    return {
        f"{dataset}-{metric}": values[-1]
        for dataset, metrics in evals_log.items()
        for metric, values in metrics.items()
    }
