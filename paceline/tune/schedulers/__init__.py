"""Schedulers for ``TuneConfig(scheduler=...)``; each is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name

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

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        from paceline.tune.schedulers.hb_bohb import ADVICE

        raise no_such_name(__name__, name, ADVICE)
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
