"""Weights & Biases: ``WandbLoggerCallback`` for the driver, ``setup_wandb`` for workers."""

from __future__ import annotations

import importlib.util

from paceline.air.lazy import lazy_imports

if importlib.util.find_spec("wandb") is None:
    raise ImportError("paceline.air.integrations.wandb needs wandb: pip install 'paceline[wandb]'", name="wandb")

with lazy_imports(__name__):
    from paceline.trackers.wandb import WandbLoggerCallback as WandbLoggerCallback
    from paceline.trackers.wandb_setup import setup_wandb as setup_wandb
