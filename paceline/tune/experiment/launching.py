"""From a configuration to a trial, and from a trial to its run: its complete description, its data, its Run."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from paceline.air.background_pool import BackgroundPool
from paceline.air.config import ScalingConfig
from paceline.air.resources import PlacementGroupFactory
from paceline.data.ingest.request import Ingest
from paceline.engine.base import Engine
from paceline.run.data import RunData
from paceline.run.decisions import Decider
from paceline.run.opening import Embedding
from paceline.run.run import Run
from paceline.run.run_files import RunFiles
from paceline.run.spec import RunSpec, Trial, TrialIdentity, TrialPlace
from paceline.storage.files import SharedSync
from paceline.tune.experiment.audience import Audience, TrialObservers
from paceline.tune.experiment.ledger import Request
from paceline.tune.experiment.place import ExperimentPlace, directory_name
from paceline.tune.experiment.setup import SearchSetup
from paceline.tune.experiment.trials import TrialRun, Trials
from paceline.tune.search.space import tag

T = TypeVar("T")

_THREADS = 16
"""Trials whose workers may be brought up or ended at the same time without anybody waiting for it."""

_MOST_KEPT = 4
"""Kept preparations of datasets: each may hold rows in memory."""


class Launcher:
    """Makes the trials of an experiment, and their runs."""

    def __init__(
        self, setup: SearchSetup, engine: Engine, place: ExperimentPlace, trials: Trials, audience: Audience
    ) -> None:
        self._setup = setup
        self._trials = trials
        self._run_config = dataclasses.replace(setup.run_config, callbacks=[], stop=None)
        """That of a single trial: callbacks and stoppers are the experiment's."""
        self._engine = engine
        self.place = place
        self._audience = audience
        self._datasets = SharedDatasets()
        self._background: BackgroundPool | None = None
        self._cancelled = False
        self.shared_sync = SharedSync()

    @property
    def runs_in_this_process(self) -> bool:
        """Then there is room for one worker, which nobody can wait beside."""
        return self._engine.capabilities.in_driver_process

    def new_trial(
        self, number: int, config: dict[str, Any], evaluated: dict[str, Any], directory: str | None = None
    ) -> TrialRun:
        """A trial that is PENDING, in the table; a restore says which directory it has."""
        setup, place = self._setup, self.place
        trial = Trial(
            trial_id=place.trial_id(number),
            trainable_name=setup.kind.name,
            local_path="",
            experiment_id=place.experiment_id,
            experiment_name=place.name,
            experiment_tag=tag(number, evaluated),
            config=config,
            evaluated_params=evaluated,
        )
        with self._audience.guarded():
            if setup.tune.trial_name_creator is not None:
                trial.custom_name = str(setup.tune.trial_name_creator(trial))
            name = directory or directory_name(trial, setup.tune.trial_dirname_creator)
        if directory is None:  # a power cut may have left the trial's files and not the record of its creation
            name = place.free_name(name)
        path = place.assign(trial, name)
        request = self._request(config)
        self._trials.ledger.check(request)
        trial.resources = dict(request.amounts)
        trial_run = TrialRun(number, trial, path, request)
        self._trials.add(trial_run)
        self._audience.view.trials.append(trial)
        self._audience.trial_changed(trial)
        return trial_run

    def _request(self, config: dict[str, Any]) -> Request:
        """What a trial with this configuration needs while it runs."""
        with self._audience.guarded():  # the resources may be a function of the user's
            factory = self._setup.kind.resources(config)
        bundles = factory.bundles if self._setup.kind.counts_own_bundle else factory.bundles[1:]
        amounts = PlacementGroupFactory(bundles).required_resources
        gpus = max((bundle.get("GPU", 0.0) for bundle in bundles), default=0.0)
        return Request(amounts, gpus, sum(1 for bundle in bundles if bundle.get("GPU")))

    def spec(self, trial_run: TrialRun) -> RunSpec:
        """The complete description of the trial's run, with the resources that it holds."""
        setup, trial = self._setup, trial_run.trial
        spec = setup.kind.run_spec(trial.config, self._run_config, setup.scheduler.checkpoint_every())
        cpus = trial.resources.get("CPU", 0.0)
        return dataclasses.replace(
            spec,
            scaling=self._resized(spec.scaling, trial.resources) if trial_run.is_resized else spec.scaling,
            identity=TrialIdentity(trial.trial_id, trial.experiment_id, trial.experiment_tag),
            evaluated=trial.evaluated_params,
            place=TrialPlace(trial_run.directory, self.place.name, trial.path if self.place.uri else None),
            restore_path=trial.path if trial_run.has_files else None,
            threads=max(1, int(cpus // spec.world_size)),
            devices=trial_run.grant.devices if trial_run.grant is not None else None,
            working_dir=None if setup.tune.chdir_to_trial_dir else ".",
        )

    def _resized(self, scaling: ScalingConfig, amounts: dict[str, float]) -> ScalingConfig:
        """The same number of workers, who share what the trial holds now."""
        share = {name: amount / (scaling.num_workers or 1) for name, amount in amounts.items()}
        own = amounts if self._setup.kind.counts_own_bundle else scaling.trainer_resources
        return dataclasses.replace(
            scaling, trainer_resources=own, resources_per_worker=share, use_gpu=bool(share.get("GPU"))
        )

    def make_run(self, trial_run: TrialRun, decider: Decider) -> None:
        """Give the trial its run; in the background where datasets are prepared for it or a remote store is asked."""
        spec = self.spec(trial_run)
        build = partial(self._build, trial_run, spec, decider)
        if spec.ingest is None and self.place.uri is None:
            trial_run.run = build()
        else:
            trial_run.building = self.in_background(build)

    def _build(self, trial_run: TrialRun, spec: RunSpec, decider: Decider) -> Run:
        def observe(spec: RunSpec, files: RunFiles) -> TrialObservers:
            return TrialObservers(spec.run_config, trial_run.trial, files.run_dir, audience=self._audience)

        prepared = self._datasets.prepared(spec)
        embedding = Embedding(observe, decider, self.in_background, self.shared_sync, prepared)
        run = Run(spec, self._engine, embedding).open()
        trial_run.has_files = True
        return run

    def in_background(self, work: Callable[[], T]) -> Future[T]:
        """Do what takes long in another thread; the event loop is woken when it is done."""
        if self._background is None:
            self._background = BackgroundPool("paceline-experiment", _THREADS)
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
            self._background.close(0 if self._cancelled else None)
        self.shared_sync.close()


class SharedDatasets:
    """Datasets that several trials read are prepared once: listing, counting and fitting a preprocessor can take long.

    Any thread may ask for what was prepared for earlier trials.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prepared: dict[Any, tuple[RunSpec, RunData | Exception]] = {}

    def prepared(self, spec: RunSpec) -> RunData | None:
        """The run's datasets, prepared now or for a run that had the very same ones; None for a run without."""
        if spec.ingest is None:
            return None
        key = (spec.world_size, *spec.ingest.identity())
        with self._lock:  # one at a time: the next run most likely needs the same
            if key not in self._prepared:
                while len(self._prepared) >= _MOST_KEPT:
                    self._prepared.pop(next(iter(self._prepared)))
                own = dataclasses.replace(spec, ingest=_with_own_preprocessor(spec.ingest))
                self._prepared[key] = (spec, _tried(own))  # with its owner: the key goes by identity
            prepared = self._prepared[key][1]
            if isinstance(prepared, Exception):
                raise prepared
            return prepared


def _tried(spec: RunSpec) -> RunData | Exception:
    """What cannot be prepared for one trial cannot be prepared for the next: it is not tried again."""
    try:
        return RunData.prepared(spec, spec.world_size)
    except Exception as error:
        return error


def _with_own_preprocessor(ingest: Ingest) -> Ingest:
    """Fitting changes a preprocessor: trials with other datasets must find it as the user gave it."""
    return dataclasses.replace(ingest, preprocessor=copy.deepcopy(ingest.preprocessor))
