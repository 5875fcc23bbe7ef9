"""LightGBM's random numbers, in a training that goes on from a checkpoint.

A model file does not hold the state of LightGBM's generators: a continued training would draw the rows and columns of
the first rounds once more. Here they are drawn again up to where the checkpoint was, without training: rounds that
cannot split anything draw rows, and each change of parameters draws columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError
from paceline.train.lightgbm.continued import Progress
from paceline.train.lightgbm.metrics import FIRST
from paceline.train.lightgbm.params import value_of

if TYPE_CHECKING:
    from lightgbm.callback import CallbackEnv

_NO_SPLIT = 1e300


def check_continuable(params: Mapping[str, Any]) -> None:
    if value_of(params, "boosting") in ("rf", "random_forest"):
        raise ConfigError(
            "A random forest (boosting='rf') cannot go on from a checkpoint: LightGBM offers no way. Train it in one "
            "go: without resume_from_checkpoint, and without CheckpointConfig(checkpoint_frequency=...), so that an "
            "attempt after a failure begins anew."
        )


def not_repeatable(params: Mapping[str, Any], rounds: int) -> str | None:
    """Why trees after a break will differ from those without it; None if they are the same."""
    if value_of(params, "boosting") == "dart":
        return "boosting='dart' cannot drop the trees of a checkpoint"
    if "goss" in (value_of(params, "boosting"), value_of(params, "data_sample_strategy")):
        return "GOSS draws rows by what it has seen in earlier rounds"
    if value_of(params, "extra_trees", False):
        return "extra_trees draws anew"
    if float(value_of(params, "feature_fraction_bynode", 1.0)) < 1:
        return "feature_fraction_bynode draws anew"
    frequency = _bagging_frequency(params)
    if frequency and rounds % frequency:
        return (
            f"rows are drawn every {frequency} rounds (bagging_freq), of which the checkpoint's {rounds} are no "
            "multiple: choose checkpoint_frequency so"
        )
    if frequency > 1 and _draws_queries(params):
        return "rank_xendcg draws in every round, and bagging_freq rows more seldom"
    return None


class CatchUp:
    """Before the first round, brings the generators to where they were after the rounds of the checkpoint."""

    def __init__(self, params: Mapping[str, Any], progress: Progress) -> None:
        self.order = FIRST
        self.before_iteration = True
        self._params = params
        self._rounds = progress.rounds
        assert progress.model is not None
        self._column_seed = int(progress.model.params.get("feature_fraction_seed", 2))

    def __call__(self, env: CallbackEnv) -> None:
        if env.iteration == env.begin_iteration:
            self._draw_rows(env.model)
            self._draw_columns(env.model)

    def _draw_rows(self, model: Any) -> None:
        frequency = _bagging_frequency(self._params) or int(_draws_queries(self._params))
        if not frequency:
            return
        objective = value_of(self._params, "objective")
        self._reset(model, min_gain_to_split=_NO_SPLIT)
        for _ in range(self._rounds // frequency):
            model.update(fobj=objective if callable(objective) else None)
        self._reset(model, min_gain_to_split=value_of(self._params, "min_gain_to_split", 0.0))

    def _draw_columns(self, model: Any) -> None:
        if float(value_of(self._params, "feature_fraction", 1.0)) >= 1:
            return
        self._reset(model, feature_fraction_seed=self._column_seed + 1)
        self._reset(model, feature_fraction_seed=self._column_seed)  # another seed than before begins its numbers anew
        for _ in range(self._rounds * model.num_model_per_iteration()):
            self._reset(model)

    def _reset(self, model: Any, **changes: Any) -> None:
        verbosity = -1 if changes.get("min_gain_to_split") == _NO_SPLIT else value_of(self._params, "verbosity")
        model.reset_parameter({"verbosity": verbosity, **changes})


def _bagging_frequency(params: Mapping[str, Any]) -> int:
    """Rows are drawn every so many rounds; 0: never."""
    fractions = ("bagging_fraction", "pos_bagging_fraction", "neg_bagging_fraction")
    drawn = any(float(value_of(params, name, 1.0)) < 1 for name in fractions)
    return int(value_of(params, "bagging_freq", 0)) if drawn else 0


def _draws_queries(params: Mapping[str, Any]) -> bool:
    return value_of(params, "objective") in ("rank_xendcg", "xendcg", "xe_ndcg", "xe_ndcg_mart", "xendcg_mart")
