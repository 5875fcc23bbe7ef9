"""XGBoostLoop: what every worker of an XGBoostTrainer runs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from paceline.air import session
from paceline.air.errors import StopTraining
from paceline.train.rounds import Rounds
from paceline.train.trees.task import TreeTask, nothing_to_train, unused_parameter
from paceline.train.xgboost.backend import Place, readable_errors
from paceline.train.xgboost.checkpoint import XGBoostCheckpoint

if TYPE_CHECKING:
    import numpy as np
    import xgboost
    from xgboost.callback import CallbackContainer


Evaluated: TypeAlias = tuple[str, float] | list[tuple[str, float]]
Metric: TypeAlias = Callable[..., Evaluated]

COLUMN_KEYWORDS = ("weight", "base_margin", "label_lower_bound", "label_upper_bound", "qid")
"""Entries of dmatrix_params that name a column with a value for each row."""
_SAMPLING = ("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode")


@dataclass(frozen=True)
class XGBoostLoop:
    """Trains with all other ranks and reports each round.

    It is a loop of its own and not `xgboost.train`, because that numbers rounds from 0 whenever it is called: a
    continued training would draw the same random numbers again, and repeat schedules of learning rates.
    """

    KNOWN_AS: ClassVar[Mapping[str, str]] = {"task": ""}

    task: TreeTask

    def __call__(self) -> None:
        with readable_errors():
            _Training(self.task).run()


@dataclass
class _Model:
    """The booster as it is by now. Apart from the training, so that the matrices are gone as soon as that is over."""

    booster: xgboost.Booster

    def checkpoint(self) -> XGBoostCheckpoint:
        return XGBoostCheckpoint.from_model(self.booster)


class _Training:
    def __init__(self, task: TreeTask) -> None:
        import xgboost

        from paceline.train.xgboost.matrix import MatrixReader

        self._task = task
        self._params = _complete(task)
        start = session.get_checkpoint()
        before = None if start is None else XGBoostCheckpoint.from_checkpoint(start).get_model()
        matrices = MatrixReader(task, self._params, before).read()
        self._evals = [(matrix, name) for name, matrix in matrices.items()]
        self._train = matrices["train"]
        self._objective = task.train_kwargs.get("obj")
        self._model = _Model(xgboost.Booster(dict(self._params), list(matrices.values()), model_file=before))
        self._done = 0 if before is None else before.num_boosted_rounds()
        self._rounds = Rounds(task.checkpoint_frequency, task.checkpoint_at_end, self._model.checkpoint)
        unused, usual = unused_params(self._model.booster)
        for name in unused:
            self._rounds.warn(unused_parameter("XGBoost", name, usual))
        self._ended = False

    def run(self) -> None:
        if self._done >= self._task.num_boost_round:
            self._report_finished()
            return
        container = self._callbacks()
        self._model.booster = container.before_training(self._model.booster)
        if self._done:
            from paceline.train.xgboost.callback import take_up, was_over

            if self._rounds.has_rows and was_over(container.callbacks, self._model.booster, self._done):
                return
            container.callbacks = take_up(container.callbacks, self._model.booster, self._done)
        try:
            self._boost(container)
        except StopTraining:
            self._end(container)
            self._rounds.end()
            raise
        self._rounds.end()

    def _boost(self, container: CallbackContainer) -> None:
        draws = _draws_samples(self._params)
        for done in range(self._done, self._task.num_boost_round):
            if container.before_iteration(self._model.booster, done, self._train, self._evals):
                self._end(container)
                return
            if draws:
                self._forget_draws()
            self._model.booster.update(self._train, done, self._objective)
            stops = container.after_iteration(self._model.booster, done, self._train, self._evals)
            if stops or done + 1 == self._task.num_boost_round:
                self._end(container)
                stops = True
            self._rounds.report(done + 1, latest_values(container.history))
            if stops:
                return

    def _end(self, container: CallbackContainer) -> None:
        """Tell the callbacks, once: the run may be stopped at the very row that is the last one."""
        if not self._ended:
            self._ended = True
            self._model.booster = container.after_training(self._model.booster)

    def _report_finished(self) -> None:
        """The checkpoint has all rounds already: one row says what its model is worth, unless the run has that row."""
        from xgboost.callback import CallbackContainer

        if self._rounds.has_rows:
            return
        self._rounds.warn(nothing_to_train(self._done))
        container = CallbackContainer([], self._metric(), output_margin=callable(self._objective))
        container.after_iteration(self._model.booster, self._done - 1, self._train, self._evals)
        self._rounds.report(self._done, latest_values(container.history))
        self._rounds.end()

    def _callbacks(self) -> CallbackContainer:
        from xgboost.callback import CallbackContainer, EarlyStopping, EvaluationMonitor

        keywords = self._task.train_kwargs
        callbacks = list(keywords.get("callbacks") or [])
        period = keywords.get("verbose_eval")
        if period:
            callbacks.append(EvaluationMonitor(period=int(period)))
        if keywords.get("early_stopping_rounds"):
            callbacks.append(EarlyStopping(rounds=keywords["early_stopping_rounds"], maximize=keywords.get("maximize")))
        return CallbackContainer(callbacks, self._metric(), output_margin=callable(self._objective))

    def _metric(self) -> Metric | None:
        custom = self._task.train_kwargs.get("custom_metric")
        return None if custom is None else _over_all_workers(custom)

    def _forget_draws(self) -> None:
        """Let what a round draws depend on the seed and its number only, so that a continued training draws the same.

        With seed_per_iteration XGBoost seeds itself anew in each round, but the object that grows trees keeps a
        sampler of columns from its first round on. XGBoost makes that object anew when the tree method changes.
        """
        method = self._params.get("tree_method", "auto")
        self._model.booster.set_param("tree_method", "hist" if method == "approx" else "approx")
        self._model.booster.save_config()  # applies it
        self._model.booster.set_param("tree_method", method)


def _complete(task: TreeTask) -> dict[str, Any]:
    """The user's parameters, with what a worker adds."""
    params = {"seed_per_iteration": True, **task.params}
    if "nthread" not in params:
        params["nthread"] = params.pop("n_jobs", Place.here().threads)
    bins = task.matrix_params.get("train", {}).get("max_bin")
    if bins is not None:
        params.setdefault("max_bin", bins)
    return params


def _draws_samples(params: Mapping[str, Any]) -> bool:
    """Where rounds are to draw by their number; a user who wants otherwise gets what XGBoost does."""
    by_number = bool(params["seed_per_iteration"]) and "updater" not in params
    return by_number and any(float(params.get(name, 1)) != 1 for name in _SAMPLING)


def _over_all_workers(metric: Metric) -> Metric:
    """The mean of a metric over the workers, weighted by their rows; a function may give several metrics, in a list."""
    import numpy as np
    from xgboost import collective as xgboost_collective

    def mean(predictions: np.ndarray, matrix: xgboost.DMatrix) -> Evaluated:
        found = metric(predictions, matrix)
        if not xgboost_collective.is_distributed():
            return found
        several = found if isinstance(found, list) else [found]
        weight = float(matrix.num_row())
        parts = np.array([*(value * weight if weight else 0.0 for _, value in several), weight], dtype=np.float64)
        *totals, weights = xgboost_collective.allreduce(parts, xgboost_collective.Op.SUM)
        means = [
            (name, float(total / weights) if weights else float("nan"))
            for (name, _), total in zip(several, totals, strict=True)
        ]
        return means if isinstance(found, list) else means[0]

    return mean


# -- metrics ---------------------------------------------------------------------------------------
# XGBoost adds up over the workers what a metric consists of, so means and their roots come out as in one process.
# Of AUC each worker computes its own, and the values are averaged, weighted by what each has to compare.


_SUMS = frozenset(
    [
        *("rmse", "rmsle", "mae", "mape", "mphe", "logloss", "error", "merror", "mlogloss", "quantile", "expectile"),
        *("ndcg", "map", "pre", "poisson-nloglik", "gamma-nloglik", "gamma-deviance", "tweedie-nloglik"),
        *("aft-nloglik", "interval-regression-accuracy"),
    ]
)
"""Sums over rows or queries, without what follows an "@"."""


def approximate_metrics(params: Mapping[str, Any], train_kwargs: Mapping[str, Any]) -> list[str]:
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


# -- parameters that XGBoost does not use ----------------------------------------------------------


_UNUSED = re.compile(r"Parameters: \{(.*?)\} are not used", re.DOTALL)
_OFTEN = (
    *("max_depth", "learning_rate", "eta", "gamma", "min_split_loss", "min_child_weight", "max_delta_step", "device"),
    *("subsample", "sampling_method", "colsample_bytree", "colsample_bylevel", "colsample_bynode", "reg_lambda"),
    *("lambda", "reg_alpha", "alpha", "tree_method", "scale_pos_weight", "grow_policy", "max_leaves", "max_bin"),
    *("num_parallel_tree", "monotone_constraints", "interaction_constraints", "multi_strategy", "nthread", "seed"),
    *("max_cat_to_onehot", "max_cat_threshold", "verbosity", "objective", "eval_metric", "base_score", "booster"),
    *("num_class", "tweedie_variance_power", "quantile_alpha", "huber_slope", "seed_per_iteration", "n_jobs"),
)
"""What a misspelt name may have been meant to be."""


def unused_params(booster: xgboost.Booster) -> tuple[list[str], tuple[str, ...]]:
    """The names, and those that are usual. XGBoost says it itself when it applies parameters, which happens here.

    That depends on the others: `rate_drop` is used with booster='dart' only. Afterwards it is told no more.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        booster.save_config()
    unused: list[str] = []
    for each in told:
        found = _UNUSED.search(str(each.message))
        if found is None:
            _tell_again(each)
        else:
            unused += re.findall(r'"([^"]*)"', found[1])
    booster.set_param("validate_parameters", "0")
    return unused, _OFTEN


def _tell_again(message: Any) -> None:
    warnings.warn_explicit(message.message, message.category, message.filename, message.lineno)
