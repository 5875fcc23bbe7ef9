"""Callbacks by which Keras' `model.fit` inside of a function trainable reports."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.air.checkpoint import Checkpoint
from paceline.train.tensorflow.callback import Callback, Metrics

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


class TuneReportCallback(Callback):
    """Reports the metrics of Keras at each event of `on`, without checkpoints."""

    def __init__(self, metrics: Metrics = None, on: str | Sequence[str] = "epoch_end") -> None:
        super().__init__(metrics, on, frequency=0)


class TuneReportCheckpointCallback(Callback):
    """Reports at each event of `on`, and with every `frequency`-th of them a checkpoint.

    The checkpoint has the model under the name `filename`; Keras 3 saves models only to names that end with .keras, so
    this is added where it is missing.
    """

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = "checkpoint",
        frequency: int | Sequence[int] = 1,
        on: str | Sequence[str] = "epoch_end",
    ) -> None:
        super().__init__(metrics, on, frequency)
        self._filename = filename
        self._directory = ""

    def _report(self, with_checkpoint: bool, logs: Mapping[str, Any]) -> None:
        with tempfile.TemporaryDirectory(prefix="paceline-keras-") as self._directory:
            super()._report(with_checkpoint, logs)

    def _checkpoint(self) -> Checkpoint:
        import tensorflow as tf

        name = self._filename
        if tf.keras.__version__.startswith("3") and not name.endswith((".keras", ".h5")):
            name += ".keras"
        self.model.save(os.path.join(self._directory, name))
        return Checkpoint.from_directory(self._directory)
