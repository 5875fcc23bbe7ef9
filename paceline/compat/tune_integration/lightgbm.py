"""Callbacks by which a `lightgbm.train` or `lightgbm.cv` inside of a function trainable reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.air import session
from paceline.train.lightgbm.callback import ReportCallback

if TYPE_CHECKING:
    from lightgbm.callback import CallbackEnv

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]

Metrics = str | Sequence[str] | Mapping[str, str] | None
ChangeRow = Callable[[dict[str, Any]], dict[str, Any]] | None


class TuneReportCheckpointCallback(ReportCallback):
    """Reports each round, and every `frequency` rounds a checkpoint with the model as the file `filename`.

    `results_postprocessing_fn` gets the metrics as "<dataset>-<metric>" and returns what to report instead.
    """

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = "checkpoint",
        frequency: int = 5,
        results_postprocessing_fn: ChangeRow = None,
    ) -> None:
        super().__init__(metrics, filename, frequency, False, results_postprocessing_fn)


class TuneReportCallback(TuneReportCheckpointCallback):
    """Reports each round, without checkpoints. Of `lightgbm.cv`, it reports "<dataset>-<metric>-mean" and "-stdv"."""

    def __init__(self, metrics: Metrics = None, results_postprocessing_fn: ChangeRow = None) -> None:
        super().__init__(metrics, frequency=0, results_postprocessing_fn=results_postprocessing_fn)

    def __call__(self, env: CallbackEnv) -> None:
        from lightgbm import CVBooster

        if isinstance(env.model, CVBooster):
            session.report(self._changed(_over_folds(env.evaluation_result_list)))
        else:
            super().__call__(env)


def _over_folds(results: Sequence[Any] | None) -> dict[str, float]:
    row: dict[str, float] = {}
    for dataset, metric, mean, _, deviation in results or ():
        row[f"{dataset}-{metric}-mean"] = float(mean)
        row[f"{dataset}-{metric}-stdv"] = float(deviation)
    return row
