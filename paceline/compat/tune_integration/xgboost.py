"""Callbacks by which an `xgboost.train` inside of a function trainable reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.train.xgboost.callback import ReportCallback

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
        super().__init__(metrics, filename, frequency, checkpoint_at_end=False)
        self._change_row = results_postprocessing_fn

    def _row(self, evals_log: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, Any]:
        row = super()._row(evals_log)
        return row if self._change_row is None else self._change_row(row)


class TuneReportCallback(TuneReportCheckpointCallback):
    """Reports each round, without checkpoints."""

    def __init__(self, metrics: Metrics = None, results_postprocessing_fn: ChangeRow = None) -> None:
        super().__init__(metrics, frequency=0, results_postprocessing_fn=results_postprocessing_fn)
