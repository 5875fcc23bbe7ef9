"""How LightGBM's metrics of the workers' parts of a dataset become that of the whole.

LightGBM evaluates on each worker the rows that are there. Most metrics are means over rows or queries: from the parts'
values and weights comes exactly the value of all rows. Where rows of different workers would have to be compared
(AUC), or in what way is not known (functions of the user's), the mean of the parts is an approximation.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import ConfigError
from paceline.train.lightgbm.backend import gather
from paceline.train.lightgbm.params import value_of, without
from paceline.train.trees.datasets import meant

if TYPE_CHECKING:
    import lightgbm as lgb
    import numpy as np
    from lightgbm.callback import CallbackEnv
    from numpy.typing import NDArray

    from paceline.train.lightgbm.matrix import Matrix

_OVER_ROWS = {
    "l1": ("mean_absolute_error", "mae", "regression_l1"),
    "l2": ("mean_squared_error", "mse", "regression_l2", "regression"),
    "rmse": ("root_mean_squared_error", "l2_root"),
    "quantile": (),
    "mape": ("mean_absolute_percentage_error",),
    "huber": (),
    "fair": (),
    "poisson": (),
    "gamma": (),
    "gamma_deviance": (),
    "tweedie": (),
    "binary_logloss": ("binary",),
    "binary_error": (),
    "multi_logloss": ("multiclass", "softmax", "multiclassova", "multiclass_ova", "ova", "ovr"),
    "multi_error": (),
    "cross_entropy": ("xentropy",),
    "cross_entropy_lambda": ("xentlambda",),
    "kullback_leibler": ("kldiv",),
}
_OVER_QUERIES = {
    "ndcg": ("lambdarank", "rank_xendcg", "xendcg", "xe_ndcg", "xe_ndcg_mart", "xendcg_mart"),
    "map": ("mean_average_precision",),
}
_OF_ALL_ROWS = ("auc", "auc_mu", "average_precision", "r2")
_NO_METRIC = ("", "none", "null", "custom", "na")
_NAMES = {name for table in (_OVER_ROWS, _OVER_QUERIES) for main, others in table.items() for name in (main, *others)}

Share = Literal["weight", "rows", "queries"]
"""What a worker's part of a dataset counts by."""
Shares = Mapping[Share, float]
Part = tuple[float, float]
"""A worker's value of a metric, and what its part of the dataset counts."""


def check_metrics(params: Mapping[str, Any]) -> None:
    """Refuse names that LightGBM does not know: it would say so in its log at most, and compute nothing."""
    known = [*_NAMES, *_OF_ALL_ROWS]
    for name in _asked(params):
        if name in known:
            continue
        plain, _, place = name.partition("@")
        if plain in _OVER_QUERIES and place:
            raise ConfigError(
                f"params['metric'] names {name!r}: LightGBM takes places apart from the metric, "
                f"params={{'metric': {plain!r}, 'eval_at': [{place}]}}."
            )
        raise ConfigError(f"params['metric'] names {name!r}, which LightGBM does not know.{meant(name, known)}")


def ranks_rows(params: Mapping[str, Any]) -> bool:
    """True if rows are compared with those of the same query, by the objective or a metric."""
    names = {name for main, others in _OVER_QUERIES.items() for name in (main, *others)}
    return value_of(params, "objective") in names or not names.isdisjoint(_asked(params))


def approximate_metrics(params: Mapping[str, Any], train_kwargs: Mapping[str, Any]) -> list[str]:
    """Of the metrics that are asked for, those that cannot be put together exactly from the workers' parts.

    Without any LightGBM takes that of the objective, which can be.
    """
    names = [name for name in _asked(params) if name not in _NAMES]
    return [*names, "feval"] if train_kwargs.get("feval") else names


def _asked(params: Mapping[str, Any]) -> list[str]:
    """The metrics that are named, as LightGBM spells them."""
    asked = value_of(params, "metric")
    names = asked.split(",") if isinstance(asked, str) else [] if asked is None else list(asked)
    plain = [str(name).strip().lower() for name in names if name is not None]
    return [name for name in plain if name not in _NO_METRIC]


def share_of(metric: str, shares: Shares) -> float:
    """What LightGBM divides the metric by. Without queries a metric of such a name is a function of the user's."""
    name = metric.partition("@")[0]
    if name in _OVER_QUERIES:
        return shares["queries"] or shares["weight"]
    return shares["rows" if name == "cross_entropy_lambda" else "weight"]


def combined(metric: str, parts: Sequence[Part]) -> float:
    """The metric of all rows from those of the workers' parts. Of a dataset that all have whole it is that of each."""
    if all(part == parts[0] for part in parts):
        return parts[0][0]
    counting = [(value, share) for value, share in parts if share]
    if metric == "gamma_deviance":  # the only one that is a sum
        return sum(value for value, _ in counting)
    everything = sum(share for _, share in counting)
    if not everything:
        return math.nan
    if metric == "rmse":
        return math.sqrt(sum(value * value * share for value, share in counting) / everything)
    return sum(value * share for value, share in counting) / everything


def shares_of(rows: int, weight: NDArray[np.float32] | None, group: NDArray[np.int32] | None) -> dict[Share, float]:
    """What a part of a dataset counts. A query weighs what its rows weigh on average."""
    import numpy as np

    if weight is None:
        return {"weight": float(rows), "rows": float(rows), "queries": float(0 if group is None else len(group))}
    queries = 0.0
    if group is not None:
        starts = np.cumsum(group) - group
        queries = float((np.add.reduceat(weight, starts, dtype=np.float64) / group).sum())
    return {"weight": float(weight.sum(dtype=np.float64)), "rows": float(rows), "queries": queries}


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


def evaluated(
    model: lgb.Booster, params: Mapping[str, Any], matrices: Mapping[str, Matrix], feval: Any
) -> dict[str, float]:
    """The metrics of a finished model on all rows of these datasets.

    LightGBM evaluates what it trains, so a training is begun that would go on from the model, and left before its
    first round.
    """
    import lightgbm as lgb

    found: dict[str, float] = {}

    def look(env: CallbackEnv) -> None:
        assert isinstance(env.model, lgb.Booster)
        env = replace(env, evaluation_result_list=[*env.model.eval_train(feval), *env.model.eval_valid(feval)])
        make_one(env, lambda dataset: matrices[dataset].shares)
        found.update(row_of(env.evaluation_result_list))
        raise _LookedAt

    look.before_iteration = True  # type: ignore[attr-defined]  # as LightGBM wants to be told
    with contextlib.suppress(_LookedAt):
        lgb.train(
            without(params, "categorical_feature", "early_stopping_round"),
            matrices[TRAIN_DATASET_KEY].dataset,
            1,
            valid_sets=[matrix.dataset for matrix in matrices.values()],
            valid_names=list(matrices),
            init_model=model,
            callbacks=[look],
        )
    return found


class _LookedAt(Exception):  # noqa: N818  # no error
    """There is nothing more to be done."""


def row_of(results: Sequence[Any] | None) -> dict[str, float]:
    """The evaluations as metrics to be reported."""
    return {f"{dataset}-{metric}": float(value) for dataset, metric, value, *_ in results or ()}
