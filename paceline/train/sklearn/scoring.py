"""Scores of a fitted estimator on other rows, and cross-validation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.train.sklearn.features import Rows


def scores(estimator: Any, scoring: Any, rows: Rows) -> dict[str, float]:
    """`test_score`, or `test_<name>` of each of several scorers, and how long it took."""
    from sklearn import metrics

    started = time.perf_counter()
    scorer = metrics.check_scoring(estimator, scoring=scoring)
    labels = () if rows.labels is None else (rows.labels,)
    value = scorer(estimator, rows.features, *labels)
    taken = time.perf_counter() - started
    several = value if isinstance(value, Mapping) else {"score": value}
    return {**{f"test_{name}": float(each) for name, each in several.items()}, "score_time": taken}


def cross_validation(
    estimator: Any,
    rows: Rows,
    *,
    cv: Any,
    scoring: Any,
    fit_params: Mapping[str, Any],
    groups: Any,
    return_train_score: bool,
    jobs: int | None,
) -> dict[str, Any]:
    """The lists of scikit-learn's cross_validate, one value per fold, and `_mean` and `_std` of each.

    A fold that fails is an error: a score of NaN would hide it.
    """
    import sklearn
    from sklearn.model_selection import cross_validate

    params = dict(fit_params)
    if groups is not None and sklearn.get_config()["enable_metadata_routing"]:
        params["groups"], groups = groups, None
    found = cross_validate(
        estimator,
        rows.features,
        rows.labels,
        groups=groups,
        scoring=scoring,
        cv=cv,
        n_jobs=jobs,
        params=params or None,
        return_train_score=return_train_score,
        error_score="raise",
    )
    table: dict[str, Any] = {}
    for name, values in found.items():
        table[name] = [float(value) for value in values]
        table[f"{name}_mean"] = float(values.mean())
        table[f"{name}_std"] = float(values.std())
    return table
