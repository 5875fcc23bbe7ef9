"""ReportCallback: reports the rounds of an `xgboost.train` that a train function calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xgboost.callback import EarlyStopping, LearningRateScheduler, TrainingCallback

from paceline.air import session as session_slot
from paceline.train.rounds import RoundReporter
from paceline.train.xgboost.checkpoint import MODEL_FILE, XGBoostCheckpoint, booster_file, read_booster
from paceline.train.xgboost.loop import latest_values

if TYPE_CHECKING:
    import xgboost

    from paceline.air.checkpoint import Checkpoint


class ReportCallback(RoundReporter, TrainingCallback):
    """Reports each boosting round as one iteration, with checkpoints when asked for.

        def train_func():
            ...
            xgboost.train(params, dtrain, evals=[(dtrain, "train")], callbacks=[ReportCallback()])

    `metrics` chooses what is reported: None for everything as "<dataset>-<metric>", one such key, a list of them,
    or a dict of new names to keys. `results_postprocessing_fn` gets the metrics of a round as XGBoost has them,
    `{dataset: {metric: [values so far]}}`, and returns what to report instead.
    """

    CHECKPOINT_NAME = MODEL_FILE
    _none_computed = "give it evals=[(dtrain, 'train')]"
    _lacks_checkpoint = False

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> xgboost.Booster:
        """The booster of a checkpoint that such a callback reported."""
        return read_booster(checkpoint, filename)

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        due = self._is_due(model.num_boosted_rounds())
        self._lacks_checkpoint = not due
        session_slot.report(self._row(evals_log), self._checkpoint(model) if due else None)
        return False

    def after_training(self, model: Any) -> Any:
        if self._checkpoint_at_end and self._lacks_checkpoint:
            session_slot.active().add_checkpoint(self._checkpoint(model))
        self._lacks_checkpoint = False
        return model

    def _checkpoint(self, model: xgboost.Booster) -> XGBoostCheckpoint:
        return XGBoostCheckpoint._of(booster_file(model, self._filename))

    def _row(self, evals_log: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, Any]:
        if self._postprocess is not None:
            return self._postprocess({name: dict(values) for name, values in evals_log.items()})
        return self._chosen(latest_values(evals_log))


# -- continuing from a checkpoint ------------------------------------------------------------------


def take_up(callbacks: Sequence[TrainingCallback], booster: xgboost.Booster, done: int) -> list[TrainingCallback]:
    """The callbacks for a training that goes on after `done` rounds.

    Rounds are numbered on, so a schedule of learning rates goes on too; the rate of the next round was set after
    the one before. Early stopping knows the best round from the model and counts on from there. State that
    callbacks of the user's keep for themselves begins anew.
    """
    for callback in callbacks:
        if isinstance(callback, LearningRateScheduler):
            callback.after_iteration(booster, done - 1, {})
        elif isinstance(callback, EarlyStopping):
            callback.starting_round = 0  # it would add the rounds done to numbers that have them already
    stop = _early_stopping(callbacks)
    since = _rounds_since_best(booster, done)
    if stop is None or since is None:
        return list(callbacks)
    return [_BestRound(stop, float(booster.best_score), since), *callbacks]


def was_over(callbacks: Sequence[TrainingCallback], booster: xgboost.Booster, done: int) -> bool:
    """True if early stopping had ended the training whose checkpoint this is."""
    stop, since = _early_stopping(callbacks), _rounds_since_best(booster, done)
    return stop is not None and since is not None and since >= stop.rounds


def _early_stopping(callbacks: Sequence[TrainingCallback]) -> EarlyStopping | None:
    """The one that there is; several share one place in the model, and whose it is cannot be known."""
    stops = [callback for callback in callbacks if isinstance(callback, EarlyStopping)]
    return stops[0] if len(stops) == 1 else None


def _rounds_since_best(booster: xgboost.Booster, done: int) -> int | None:
    best = booster.attr("best_iteration")
    return None if best is None else done - 1 - int(best)


class _BestRound(TrainingCallback):
    """Reminds early stopping of the best round, once the names of what it watches are known."""

    def __init__(self, stop: EarlyStopping, best_score: float, rounds_since: int) -> None:
        super().__init__()
        self._stop = stop
        self._best_score = best_score
        self._rounds_since = rounds_since
        self._told = False

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        if not self._told and evals_log:
            dataset = self._stop.data or list(evals_log)[-1]
            metric = self._stop.metric_name or list(evals_log[dataset])[-1]
            self._stop.stopping_history = {dataset: {metric: [self._best_score]}}
            self._stop.best_scores = {dataset: {metric: [self._best_score]}}
            self._stop.current_rounds = self._rounds_since
            self._told = True
        return False
