"""The workers' evaluations of a round, made one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import ConfigError
from paceline.train.lightgbm.metrics import Shares, combined, share_of
from paceline.train.lightgbm.network import gather
from paceline.train.lightgbm.params import without

if TYPE_CHECKING:
    import lightgbm as lgb
    from lightgbm.callback import CallbackEnv

    from paceline.train.lightgbm.matrix import Matrix

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
