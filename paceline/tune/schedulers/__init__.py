"""Schedulers for ``TuneConfig(scheduler=...)``; each is loaded on first use."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.air.lazy import lazy_imports


def _advice() -> Mapping[str, str]:
    from paceline.tune.by_name import SCHEDULER_ADVICE

    return SCHEDULER_ADVICE


with lazy_imports(__name__, advice=_advice):
    from paceline.tune.by_name import create_scheduler as create_scheduler
    from paceline.tune.schedulers.async_hyperband import ASHAScheduler as ASHAScheduler
    from paceline.tune.schedulers.async_hyperband import AsyncHyperBandScheduler as AsyncHyperBandScheduler
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
    from paceline.tune.schedulers.trial_scheduler import FIFOScheduler as FIFOScheduler
    from paceline.tune.schedulers.trial_scheduler import Restart as Restart
    from paceline.tune.schedulers.trial_scheduler import TrialScheduler as TrialScheduler
