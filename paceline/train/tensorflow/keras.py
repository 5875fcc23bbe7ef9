"""The path of ReportCheckpointCallback since Ray 2.7."""

from __future__ import annotations

from paceline.train.tensorflow.callback import ReportCheckpointCallback

__all__ = ["ReportCheckpointCallback"]
