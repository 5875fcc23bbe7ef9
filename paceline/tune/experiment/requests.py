"""What a trial asks for. The number of workers of an elastic one is chosen when it starts, by what fits then."""

from __future__ import annotations

from typing import Any

from paceline.air.config import ScalingConfig
from paceline.air.errors import EngineError
from paceline.air.resources import PlacementGroupFactory
from paceline.engine.base import Engine, Placement
from paceline.tune.experiment.trials import Request, Shared, TrialRun

_ROUNDING = 1e-6


class Requests:
    """Makes the requests of trials."""

    def __init__(self, shared: Shared, engine: Engine) -> None:
        self._kind, self._trials, self._audience = shared.setup.kind, shared.trials, shared.audience
        self._engine = engine
        self._reserves_room = engine.capabilities.chooses_nodes

    def of(self, config: dict[str, Any]) -> tuple[Request, int | None]:
        """What a trial with this configuration needs while it runs; and how many workers it has, if it is elastic."""
        scaling = self._kind.elastic(config)
        workers = None if scaling is None else self._fitting(scaling)
        with self._audience.guarded():  # the resources may be a function of the user's
            factory = self._kind.resources(config)
            if scaling is not None and workers is not None:
                factory = scaling.with_workers(workers).as_placement_group_factory()
            placement = self._kind.placement(config, factory) if self._reserves_room else Placement("", ())
        bundles = factory.bundles if self._kind.counts_own_bundle else factory.bundles[1:]
        amounts = PlacementGroupFactory(bundles).required_resources
        gpus = max((bundle.get("GPU", 0.0) for bundle in bundles), default=0.0)
        return Request(amounts, gpus, sum(1 for bundle in bundles if bundle.get("GPU")), placement), workers

    def fit(self, trial_run: TrialRun) -> None:
        """Choose the size of an elastic trial again until it starts; after that it is fixed."""
        trial = trial_run.trial
        if trial_run.workers is not None and trial.status == "PENDING" and trial_run.run is None:
            trial_run.request, trial_run.workers = self.of(trial.config)
            trial.resources = dict(trial_run.request.amounts)

    def _fitting(self, scaling: ScalingConfig) -> int:
        """As many as there is room for, within its limits; it waits for room for the least."""
        least, most = scaling.min_workers or 1, scaling.max_workers or 1
        each = scaling.on_nodes()[0]
        if self._reserves_room:
            try:
                room = self._engine.room(each)
            except EngineError:  # A cluster that is busy answers later.
                room = least
        else:
            free = self._trials.ledger.free
            room = min((int(free.get(name, 0.0) / amount + _ROUNDING) for name, amount in each.items()), default=most)
        return max(least, min(most, most if room is None else room))
