"""Old path of Trial."""

from __future__ import annotations

from paceline.air.absent import advise
from paceline.run.trial import Trial as Trial

__all__ = ["Trial"]

advise(__name__, {"ExportFormat": "save the model in the format that you need, inside of the trainable"})
