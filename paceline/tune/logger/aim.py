"""Aim: ``AimLoggerCallback``."""

from __future__ import annotations

import importlib.util

from paceline.air.lazy import lazy_imports

if importlib.util.find_spec("aim") is None:
    raise ImportError("paceline.tune.logger.aim needs Aim: pip install 'paceline[aim]'", name="aim")

with lazy_imports(__name__):
    from paceline.trackers.aim import AimLoggerCallback as AimLoggerCallback
