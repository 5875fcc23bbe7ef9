"""Old path of Trial."""

from __future__ import annotations

from paceline.run.trial import Trial as Trial

__all__ = ["Trial"]
