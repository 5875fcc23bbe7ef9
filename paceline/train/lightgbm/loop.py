"""LightGBMLoop: what every worker of a LightGBMTrainer runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import DataError, StopTraining
from paceline.train.lightgbm.continued import (
    BoostingProgress,
    Callback,
    CatchUp,
    check_continuable,
    continued,
    earlier_progress,
    in_order,
    is_random_forest,
    not_repeatable,
    replay,
)
from paceline.train.lightgbm.metrics import evaluated, make_one, row_of
from paceline.train.lightgbm.params import for_worker, unknown_names, value_of, without
from paceline.train.rounds import Rounds
from paceline.train.trees.task import nothing_to_train, stopped_before, unused_parameter, will_differ

if TYPE_CHECKING:
    from lightgbm.callback import CallbackEnv

    from paceline.train.lightgbm.matrix import Matrix
    from paceline.train.trees.task import TreeTask


@dataclass(frozen=True)
class LightGBMLoop:
    """Trains the rounds that a checkpoint does not have yet, and reports each of them."""

    KNOWN_AS: ClassVar[Mapping[str, str]] = {"task": ""}

    task: TreeTask

    def __call__(self) -> None:
        progress = earlier_progress()
        params = for_worker(self.task.params)
        rounds = Rounds(
            self.task.checkpoint_frequency,
            self.task.checkpoint_at_end,
            progress.checkpoint,
            can_continue=not is_random_forest(params),
        )
        unknown, known = unknown_names(self.task.params)
        for name in unknown:
            rounds.warn(unused_parameter("LightGBM", name, known))
        callbacks = [continued(callback, progress) for callback in in_order(self._callbacks(params))]
        stopped_at = replay(callbacks, params, self.task.num_boost_round, progress)
        if progress.rounds >= self.task.num_boost_round or stopped_at is not None:
            self._report_finished(params, progress, rounds, stopped_at)
            return
        if progress.model is not None:
            check_continuable(params)
            reason = not_repeatable(params, progress.rounds)
            if reason is not None:
                rounds.warn(will_differ(reason))
        matrices = self._read_matrices(params, progress)
        try:
            self._train(params, matrices, progress, rounds, callbacks)
        except StopTraining as stopped:
            rounds.end(stopped)
            raise
        rounds.end()

    def _report_finished(
        self, params: Mapping[str, Any], progress: BoostingProgress, rounds: Rounds, stopped_at: int | None
    ) -> None:
        """There is nothing to train: one row says what the model is worth, unless the run has that row."""
        assert progress.model is not None
        if rounds.has_rows:
            return
        check_continuable(params)
        if stopped_at is None:
            rounds.warn(nothing_to_train(progress.rounds))
        else:
            progress.model.best_iteration = stopped_at
            rounds.warn(stopped_before(progress.rounds))
        matrices = self._read_matrices(params, progress)
        metrics = evaluated(progress.model, params, matrices, self.task.train_kwargs.get("feval"))
        rounds.report(progress.rounds, metrics)
        rounds.end()

    def _read_matrices(self, params: Mapping[str, Any], progress: BoostingProgress) -> dict[str, Matrix]:
        from paceline.train.lightgbm.matrix import read_matrices

        matrices, progress.features = read_matrices(self.task, params, progress.features)
        if progress.model is not None and progress.model.num_feature() != len(progress.features.names):
            raise DataError(
                f"The checkpoint's model has {progress.model.num_feature()} features, the dataset 'train' "
                f"{len(progress.features.names)}: {', '.join(progress.features.names)}."
            )
        return matrices

    def _callbacks(self, params: Mapping[str, Any]) -> list[Callback]:
        """The user's, and early stopping if it is among the parameters."""
        from lightgbm import early_stopping

        callbacks = list(self.task.train_kwargs.get("callbacks") or ())
        patience = value_of(params, "early_stopping_round")
        if patience is not None and patience > 0:
            callbacks.append(
                early_stopping(
                    patience,
                    first_metric_only=params.get("first_metric_only", False),
                    min_delta=params.get("early_stopping_min_delta", 0.0),
                    verbose=value_of(params, "verbosity") > 0,
                )
            )
        return callbacks

    def _train(
        self,
        params: Mapping[str, Any],
        matrices: Mapping[str, Matrix],
        progress: BoostingProgress,
        rounds: Rounds,
        callbacks: Sequence[Callback],
    ) -> None:
        import lightgbm as lgb

        before = [callback for callback in callbacks if getattr(callback, "before_iteration", False)]
        after = [callback for callback in callbacks if callback not in before]
        if progress.model is not None:
            before.append(CatchUp(params, progress))
        lgb.train(
            without(params, "categorical_feature", "early_stopping_round"),
            matrices[TRAIN_DATASET_KEY].dataset,
            self.task.num_boost_round - progress.rounds,
            valid_sets=[matrix.dataset for matrix in matrices.values()],
            valid_names=list(matrices),
            feval=self.task.train_kwargs.get("feval"),
            init_model=progress.model,
            callbacks=[*before, _ReportRound(progress, rounds, matrices, after)],
            keep_training_booster=True,  # all trees stay, also those after the best iteration
        )


class _ReportRound:
    """After each round: makes the evaluations those of all workers, calls the other callbacks, reports.

    Reporting comes last, so that a checkpoint knows if training ends here and which iteration was the best.
    """

    def __init__(
        self, progress: BoostingProgress, rounds: Rounds, matrices: Mapping[str, Matrix], callbacks: Sequence[Callback]
    ) -> None:
        self._progress = progress
        self._rounds = rounds
        self._matrices = matrices
        self._callbacks = callbacks

    def __call__(self, env: CallbackEnv) -> None:
        from lightgbm import Booster, EarlyStopException

        assert isinstance(env.model, Booster)
        make_one(env, lambda dataset: self._matrices[dataset].shares)
        results = env.evaluation_result_list or []
        self._progress.model = env.model
        self._progress.evaluations.append([list(result) for result in results])
        self._progress.rounds += 1
        stop = None
        try:
            for callback in self._callbacks:
                callback(env)
        except EarlyStopException as raised:
            stop = raised
            env.model.best_iteration = stop.best_iteration + 1
        self._rounds.report(self._progress.rounds, row_of(results))
        if stop is not None:
            raise stop
