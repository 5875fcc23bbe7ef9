"""From a trial to its run: what it needs, its complete description, and the Run that carries it out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from paceline.air.config import ScalingConfig
from paceline.air.resources import PlacementGroupFactory
from paceline.engine.base import Engine
from paceline.run.embedding import Embedding
from paceline.run.observers import Verdict
from paceline.run.run import Run
from paceline.run.spec import RunSpec, TrialIdentity, TrialPlace
from paceline.storage.daemon_pool import DaemonPool
from paceline.storage.shared_sync import SharedSync
from paceline.tune.experiment.audience import Audience, TrialObservers
from paceline.tune.experiment.datasets import SharedDatasets
from paceline.tune.experiment.ledger import Request
from paceline.tune.experiment.place import ExperimentPlace
from paceline.tune.experiment.plan import Plan
from paceline.tune.experiment.trial_run import TrialRun

T = TypeVar("T")

Decide = Callable[[TrialRun, int, dict[str, Any]], Verdict]

_THREADS = 16
"""Trials whose workers may be brought up or ended at the same time without anybody waiting for it."""


class Launcher:
    """Makes the runs of an experiment's trials."""

    def __init__(self, plan: Plan, engine: Engine, place: ExperimentPlace, audience: Audience) -> None:
        self._plan = plan
        self._run_config = dataclasses.replace(plan.run_config, callbacks=[], stop=None)
        """That of a single trial: callbacks and stoppers are the experiment's."""
        self._engine = engine
        self._place = place
        self._audience = audience
        self._datasets = SharedDatasets()
        self._background: DaemonPool | None = None
        self._cancelled = False
        self.shared_sync = SharedSync()

    def request(self, config: dict[str, Any]) -> Request:
        """What a trial with this configuration needs while it runs."""
        with self._audience.guarded():  # the resources may be a function of the user's
            factory = self._plan.kind.resources(config)
        bundles = factory.bundles if self._plan.kind.counts_own_bundle else factory.bundles[1:]
        amounts = PlacementGroupFactory(bundles).required_resources
        gpus = max((bundle.get("GPU", 0.0) for bundle in bundles), default=0.0)
        return Request(amounts, gpus, sum(1 for bundle in bundles if bundle.get("GPU")))

    def spec(self, each: TrialRun) -> RunSpec:
        """The complete description of the trial's run, with the resources that it holds."""
        plan, trial = self._plan, each.trial
        spec = plan.kind.run_spec(trial.config, self._run_config, plan.scheduler.checkpoint_every())
        cpus = trial.resources.get("CPU", 0.0)
        return dataclasses.replace(
            spec,
            scaling=self._resized(spec.scaling, trial.resources) if each.is_resized else spec.scaling,
            identity=TrialIdentity(trial.trial_id, trial.experiment_id, trial.experiment_tag),
            evaluated=trial.evaluated_params,
            place=TrialPlace(each.directory, self._place.name, trial.path if self._place.uri else None),
            restore_path=trial.path if each.has_files else None,
            threads=max(1, int(cpus // spec.world_size)),
            devices=each.grant.devices if each.grant is not None else None,
            working_dir=None if plan.tune.chdir_to_trial_dir else ".",
        )

    def _resized(self, scaling: ScalingConfig, amounts: dict[str, float]) -> ScalingConfig:
        """The same number of workers, who share what the trial holds now."""
        share = {name: amount / (scaling.num_workers or 1) for name, amount in amounts.items()}
        own = amounts if self._plan.kind.counts_own_bundle else scaling.trainer_resources
        return dataclasses.replace(
            scaling, trainer_resources=own, resources_per_worker=share, use_gpu=bool(share.get("GPU"))
        )

    def make_run(self, each: TrialRun, decide: Decide, may_decide: bool) -> None:
        """Give the trial its run; in the background where datasets are prepared for it or a remote store is asked."""
        spec = self.spec(each)
        build = partial(self._build, each, spec, partial(decide, each), may_decide)
        if spec.ingest is None and self._place.uri is None:
            each.run = build()
        else:
            each.building = self.in_background(build)

    def _build(
        self, each: TrialRun, spec: RunSpec, decide: Callable[[int, dict[str, Any]], Verdict], may_decide: bool
    ) -> Run:
        observe = partial(TrialObservers, audience=self._audience, trial=each.trial, decide=decide, decides=may_decide)
        embedding = Embedding(observe, self.in_background, self.shared_sync, self._datasets.prepared(spec))
        run = Run(spec, self._engine, embedding)
        each.has_files = True
        return run

    def in_background(self, work: Callable[[], T]) -> Future[T]:
        """Do what takes long in another thread; the event loop is woken when it is done."""
        if self._background is None:
            self._background = DaemonPool(_THREADS, "paceline-experiment")
        future = self._background.submit(work)
        future.add_done_callback(lambda _future: self._engine.wake())
        return future

    def cancel(self) -> None:
        """Begin nothing more, and do not wait for what has begun."""
        self._cancelled = True
        if self._background is not None:
            self._background.cancel()

    def close(self) -> None:
        if self._background is not None:
            self._background.close(wait=not self._cancelled)
        self.shared_sync.close()
