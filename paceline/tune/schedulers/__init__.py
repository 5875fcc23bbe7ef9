"""Schedulers for ``TuneConfig(scheduler=...)``; each is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.tune.schedulers.async_hyperband import ASHAScheduler as ASHAScheduler
    from paceline.tune.schedulers.async_hyperband import AsyncHyperBandScheduler as AsyncHyperBandScheduler
    from paceline.tune.schedulers.create import create_scheduler as create_scheduler
    from paceline.tune.schedulers.fifo import FIFOScheduler as FIFOScheduler
    from paceline.tune.schedulers.hyperband import HyperBandScheduler as HyperBandScheduler
    from paceline.tune.schedulers.median_stopping_rule import MedianStoppingRule as MedianStoppingRule
    from paceline.tune.schedulers.pb2 import PB2 as PB2
    from paceline.tune.schedulers.pbt import PopulationBasedTraining as PopulationBasedTraining
    from paceline.tune.schedulers.pbt import PopulationBasedTrainingReplay as PopulationBasedTrainingReplay
    from paceline.tune.schedulers.resource_changing_scheduler import DistributeResources as DistributeResources
    from paceline.tune.schedulers.resource_changing_scheduler import (
        DistributeResourcesToTopJob as DistributeResourcesToTopJob,
    )
    from paceline.tune.schedulers.resource_changing_scheduler import (
        ResourceChangingScheduler as ResourceChangingScheduler,
    )
    from paceline.tune.schedulers.trial_scheduler import Restart as Restart
    from paceline.tune.schedulers.trial_scheduler import TrialScheduler as TrialScheduler

_HOMES = {
    "ASHAScheduler": "async_hyperband",
    "AsyncHyperBandScheduler": "async_hyperband",
    "DistributeResources": "resource_changing_scheduler",
    "DistributeResourcesToTopJob": "resource_changing_scheduler",
    "FIFOScheduler": "fifo",
    "HyperBandForBOHB": "hb_bohb",
    "HyperBandScheduler": "hyperband",
    "MedianStoppingRule": "median_stopping_rule",
    "PB2": "pb2",
    "PopulationBasedTraining": "pbt",
    "PopulationBasedTrainingReplay": "pbt",
    "ResourceChangingScheduler": "resource_changing_scheduler",
    "Restart": "trial_scheduler",
    "TrialScheduler": "trial_scheduler",
    "create_scheduler": "create",
}

__all__ = [name for name in _HOMES if name != "HyperBandForBOHB"]  # whose import says what to use instead


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
