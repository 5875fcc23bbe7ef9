"""Comet: ``CometLoggerCallback``."""

from __future__ import annotations

import importlib.util

from paceline.air.lazy import lazy_imports

if importlib.util.find_spec("comet_ml") is None:
    raise ImportError("paceline.air.integrations.comet needs comet_ml: pip install 'paceline[comet]'", name="comet_ml")

with lazy_imports(__name__):
    from paceline.trackers.comet import CometLoggerCallback as CometLoggerCallback
