"""Schedulers by name."""

from __future__ import annotations

import importlib
from typing import Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError
from paceline.air.plugins import checked_made, plugin, plugin_names
from paceline.tune.schedulers.hb_bohb import ADVICE
from paceline.tune.schedulers.trial_scheduler import TrialScheduler

_NAMES = {
    "fifo": "FIFOScheduler",
    "async_hyperband": "AsyncHyperBandScheduler",
    "asynchyperband": "AsyncHyperBandScheduler",
    "asha": "ASHAScheduler",
    "hyperband": "HyperBandScheduler",
    "median_stopping_rule": "MedianStoppingRule",
    "medianstopping": "MedianStoppingRule",
    "pbt": "PopulationBasedTraining",
    "pbt_replay": "PopulationBasedTrainingReplay",
    "pb2": "PB2",
    "resource_changing": "ResourceChangingScheduler",
}


def create_scheduler(scheduler: str, **kwargs: Any) -> TrialScheduler:
    """The scheduler of that short name, such as ``"asha"``, or one that an installed package registers as an entry
    point of `paceline.schedulers`, made with the given arguments."""
    name = scheduler.lower() if isinstance(scheduler, str) else scheduler
    if name == "hb_bohb":
        raise ImportError(f"There is no scheduler {scheduler!r}: {ADVICE['HyperBandForBOHB']}.")
    if name not in _NAMES:
        if (found := plugin("schedulers", str(scheduler))) is not None:
            return checked_made(found(**kwargs), TrialScheduler, "schedulers", scheduler)
        known = [*_NAMES, *plugin_names("schedulers")]
        raise ConfigError(f"There is no scheduler {scheduler!r}{near_miss(str(name), known)}")
    made = getattr(importlib.import_module("paceline.tune.schedulers"), _NAMES[name])(**kwargs)
    assert isinstance(made, TrialScheduler)
    return made
