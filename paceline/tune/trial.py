"""The oldest path of Trial."""

from __future__ import annotations

from paceline.run.trial import Trial

__all__ = ["Trial"]
