"""ReportCallback: reports the rounds of an `xgboost.train` that a train function calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xgboost.callback import TrainingCallback

from paceline.air import session as session_slot
from paceline.air.checks import whole_number
from paceline.train.rounds import ChosenMetrics
from paceline.train.xgboost.checkpoint import MODEL_FILE, XGBoostCheckpoint, read_booster
from paceline.train.xgboost.metrics import latest_values

if TYPE_CHECKING:
    import xgboost

    from paceline.air.checkpoint import Checkpoint


class ReportCallback(TrainingCallback):
    """Reports each boosting round as one iteration, with checkpoints when asked for.

        def train_func():
            ...
            xgboost.train(params, dtrain, evals=[(dtrain, "train")], callbacks=[ReportCallback()])

    `metrics` chooses what is reported: None for everything as "<dataset>-<metric>", one such key, a list of them,
    or a dict of new names to keys. `results_postprocessing_fn` gets the metrics of a round as XGBoost has them,
    `{dataset: {metric: [values so far]}}`, and returns what to report instead.
    """

    CHECKPOINT_NAME = MODEL_FILE

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str = CHECKPOINT_NAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        self._chosen = ChosenMetrics(metrics, none_computed="give it evals=[(dtrain, 'train')]")
        self._filename = filename
        self._frequency = whole_number(frequency, "frequency", least=0, advice="a checkpoint every so many rounds.")
        self._checkpoint_at_end = checkpoint_at_end
        self._postprocess = results_postprocessing_fn
        self._lacks_checkpoint = False

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> xgboost.Booster:
        """The booster of a checkpoint that such a callback reported."""
        return read_booster(checkpoint, filename)

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        done = model.num_boosted_rounds()
        due = self._frequency > 0 and done % self._frequency == 0
        self._lacks_checkpoint = not due
        session_slot.report(self._row(evals_log), XGBoostCheckpoint._of(model, self._filename) if due else None)
        return False

    def after_training(self, model: Any) -> Any:
        if self._checkpoint_at_end and self._lacks_checkpoint:
            session_slot.active().add_checkpoint(XGBoostCheckpoint._of(model, self._filename))
        self._lacks_checkpoint = False
        return model

    def _row(self, evals_log: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, Any]:
        if self._postprocess is not None:
            return self._postprocess({name: dict(values) for name, values in evals_log.items()})
        return self._chosen.of(latest_values(evals_log))
