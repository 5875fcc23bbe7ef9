"""ReportCallback: reports the rounds of a `lightgbm.train` that a train function calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.air import session as session_slot
from paceline.air.errors import ConfigError, StopTraining
from paceline.train.lightgbm.checkpoint import MODEL_FILE, BoosterObject, Details, LightGBMCheckpoint
from paceline.train.lightgbm.metrics import FIRST, Shares, make_one, row_of, shares_of
from paceline.train.rounds import RoundReporter

if TYPE_CHECKING:
    import lightgbm as lgb
    from lightgbm.callback import CallbackEnv

    from paceline.air.checkpoint import Checkpoint
    from paceline.air.session import SessionProtocol

_reporting: list[ReportCallback] = []
"""In a worker, the callback that reported last."""
_TRAIN = ""
"""Stands for the training data, which may be evaluated under any name."""


class ReportCallback(RoundReporter):
    """Reports each boosting round as one iteration, with checkpoints when asked for.

        def train_func():
            ...
            params = {"objective": "binary", **get_network_params()}
            lightgbm.train(params, train_set, valid_sets=[train_set], callbacks=[ReportCallback()])

    What LightGBM evaluates on each worker's rows becomes one value for all of them, here and for the callbacks that
    come after: all workers stop early at the same round. So every worker needs the callback.

    `metrics` chooses what is reported: None for everything as "<dataset>-<metric>", one such key, a list of them, or
    a dict of new names to keys. `results_postprocessing_fn` gets that row and returns what to report instead.
    """

    CHECKPOINT_NAME = MODEL_FILE
    _none_computed = "give it valid_sets=[train_set]"
    order = FIRST
    before_iteration = False
    _shares: Mapping[str, Shares] = {}
    _lacking: tuple[lgb.Booster, int] | None = None
    """The model of the last row, if that had no checkpoint, and how many rows there are with it."""

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> lgb.Booster:
        """The booster of a checkpoint that such a callback reported."""
        return LightGBMCheckpoint.from_checkpoint(checkpoint).get_model(filename)

    def __call__(self, env: CallbackEnv) -> None:
        from lightgbm import Booster

        model = env.model
        if not isinstance(model, Booster):
            raise ConfigError("ReportCallback reports lightgbm.train; lightgbm.cv has no model to keep.")
        if env.iteration == env.begin_iteration:
            self._shares = _shares(model)
        make_one(env, lambda dataset: self._shares.get(dataset, self._shares[_TRAIN]))
        done = env.iteration + 1
        is_last = done == env.end_iteration and self._checkpoint_at_end
        due = self._is_due(done) or is_last
        session = session_slot.current()
        if session is not None:
            self._lacking = None if due else (model, session.reports + 1)
            _reporting[:] = [self]
        session_slot.report(self._changed(row_of(env.evaluation_result_list)), self._checkpoint(model) if due else None)

    def finish(self, session: SessionProtocol) -> None:
        """Training has ended before its last round: the model of the last row is kept."""
        if self._checkpoint_at_end and self._lacking is not None:
            model, rows = self._lacking
            if session.reports == rows:  # otherwise the user has reported something since
                session.add_checkpoint(self._checkpoint(model))

    def _checkpoint(self, model: lgb.Booster) -> LightGBMCheckpoint:
        return LightGBMCheckpoint._of(BoosterObject(model, Details(model.best_iteration), self._filename))

    def _changed(self, row: dict[str, float]) -> dict[str, Any]:
        """What to report of a round's metrics."""
        return self._chosen(row) if self._postprocess is None else self._postprocess(row)


RayTrainReportCallback = ReportCallback


@dataclass(frozen=True)
class WithLastCheckpoint:
    """A train function; when it is over, the callback in it may still have a checkpoint to hand in.

    A callback of LightGBM's is not told that training has stopped early.
    """

    function: Callable[[], None]

    def __call__(self) -> None:
        _reporting.clear()
        try:
            self.function()
        except StopTraining:
            _finish()
            raise
        _finish()


def _finish() -> None:
    for callback in _reporting:
        callback.finish(session_slot.active())


def _shares(model: lgb.Booster) -> dict[str, Shares]:
    """What this worker's parts of the datasets count, by the names they are evaluated under."""
    import numpy as np

    shares: dict[str, Shares] = {}
    for name, dataset in [(_TRAIN, model.train_set), *zip(model.name_valid_sets, model.valid_sets, strict=True)]:
        borders = dataset.get_field("group")
        group = None if borders is None else np.diff(borders)
        shares[name] = shares_of(dataset.num_data(), dataset.get_field("weight"), group)
    return shares
