"""Which trial starts next, and how: its configuration, its complete description, its data, its Run.

The scheduler chooses one that waits, else the searcher suggests a new one.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from paceline.air.background_pool import BackgroundPool
from paceline.air.config import ScalingConfig
from paceline.air.errors import ConfigError, StartupTimeoutError
from paceline.air.secrets import masked
from paceline.data.ingest.request import Ingest
from paceline.engine.base import Engine
from paceline.run.data import RunData
from paceline.run.decisions import CONTINUE, Decider
from paceline.run.opening import Embedding
from paceline.run.run import Run
from paceline.run.run_files import RunFiles
from paceline.run.spec import RunSpec, Trial, TrialIdentity, TrialPlace
from paceline.tune.experiment.audience import TrialObservers
from paceline.tune.experiment.deciding import Decisions, TrialDecider
from paceline.tune.experiment.ending import Endings, Stopping
from paceline.tune.experiment.files import directory_name
from paceline.tune.experiment.records import Stalled, TrialResumed
from paceline.tune.experiment.requests import Requests
from paceline.tune.experiment.rooms import Rooms
from paceline.tune.experiment.trials import Shared, TrialRun, shared_out
from paceline.tune.search.searcher import Searcher
from paceline.tune.search.space import describe, evaluated_record, resolve, tag
from paceline.tune.search.variants import reject_secret

T = TypeVar("T")

_THREADS = 16
"""Trials whose workers may be brought up or ended at the same time without anybody waiting for it."""
_MOST_KEPT = 4
"""Kept preparations of datasets: each may hold rows in memory."""


class Launcher:
    """Makes the trials of an experiment, and their runs."""

    def __init__(self, shared: Shared, engine: Engine) -> None:
        self._setup, self._trials, self._audience = shared.setup, shared.trials, shared.audience
        self.place = shared.place
        self._shared_sync = shared.files.shared_sync
        self._run_config = dataclasses.replace(shared.setup.run_config, callbacks=[], stop=None)
        """That of a single trial: callbacks and stoppers are the experiment's."""
        self._engine = engine
        self.runs_in_this_process = engine.capabilities.in_driver_process
        """Then there is room for one worker, which nobody can wait beside."""
        self.reserves_room = engine.capabilities.chooses_nodes
        """Then workers that wait would keep room that others need, or wait for it where they are."""
        self.requests = Requests(shared, engine)
        self._datasets = SharedDatasets()
        self._background: BackgroundPool | None = None
        self._cancelled = False

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
        request, workers = self.requests.of(config)
        self._trials.ledger.check(request)
        trial.resources = dict(request.amounts)
        trial_run = TrialRun(number, trial, path, request, workers=workers)
        self._trials.add(trial_run)
        self._audience.view.trials.append(trial)
        self._audience.trial_changed(trial)
        return trial_run

    def spec(self, trial_run: TrialRun) -> RunSpec:
        """The complete description of the trial's run, with the resources that it holds."""
        setup, trial = self._setup, trial_run.trial
        spec = setup.kind.run_spec(trial.config, self._run_config, setup.scheduler.checkpoint_every())
        if trial_run.workers is not None:
            spec = dataclasses.replace(spec, scaling=spec.scaling.with_workers(trial_run.workers))
        cpus = trial.resources.get("CPU", 0.0)
        return dataclasses.replace(
            spec,
            scaling=self._resized(spec.scaling, trial.resources) if trial_run.is_resized else spec.scaling,
            identity=TrialIdentity(trial.trial_id, trial.experiment_id, trial.experiment_tag),
            evaluated=trial.evaluated_params,
            place=TrialPlace(trial_run.directory, self.place.name, trial.path if self.place.uri else None),
            restore_path=trial.path if trial_run.has_files else None,
            threads=max(1, int(cpus // spec.max_workers)),
            devices=trial_run.devices,
            room=tuple(shared_out(spec.room, trial.resources)) if trial_run.is_resized else spec.room,
            reservation=lambda: trial_run.reservation,
            working_dir=None if setup.tune.chdir_to_trial_dir else ".",
        )

    def _resized(self, scaling: ScalingConfig, amounts: dict[str, float]) -> ScalingConfig:
        """The same number of workers, who share what the trial holds now."""
        share = {name: amount / (scaling.max_workers or 1) for name, amount in amounts.items()}
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
        embedding = Embedding(observe, decider, self.in_background, self._shared_sync, prepared)
        run = Run.open(spec, self._engine, embedding)
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
        key = (spec.max_workers, *spec.ingest.identity())
        with self._lock:  # one at a time: the next run most likely needs the same
            if key not in self._prepared:
                while len(self._prepared) >= _MOST_KEPT:
                    self._prepared.pop(next(iter(self._prepared)))
                tried = _tried(_with_own_preprocessor(spec.ingest), spec.max_workers)
                self._prepared[key] = (spec, tried)  # with its owner: the key goes by identity
            prepared = self._prepared[key][1]
            if isinstance(prepared, Exception):
                raise prepared
            return prepared


def _tried(ingest: Ingest, world_size: int) -> RunData | Exception:
    """What cannot be prepared for one trial cannot be prepared for the next: it is not tried again."""
    try:
        return RunData.prepared(ingest, world_size)
    except Exception as error:
        return error


def _with_own_preprocessor(ingest: Ingest) -> Ingest:
    """Fitting changes a preprocessor: trials with other datasets must find it as the user gave it."""
    return dataclasses.replace(ingest, preprocessor=copy.deepcopy(ingest.preprocessor))


IDLE_S = 10.0
"""How long a searcher may suggest nothing, with no trial left, before the user is warned."""


class Starter:
    """Starts trials as far as the resources go."""

    def __init__(
        self,
        shared: Shared,
        launcher: Launcher,
        rooms: Rooms,
        deciding: Decisions,
        stopping: Stopping,
        endings: Endings,
    ) -> None:
        self._setup, self._trials, self._audience = shared.setup, shared.trials, shared.audience
        self._journal, self._controller = shared.files.journal, shared.controller
        self._launcher, self._rooms = launcher, rooms
        self._decisions = deciding
        self._stopping = stopping
        self._endings = endings
        self.asked_in_vain = False
        """The searcher had no suggestion; it is asked again when something has happened."""
        self._idle_since = time.monotonic()

    def start_more(self) -> None:
        """Start what the scheduler chooses, else what the searcher suggests, as far as the resources go."""
        self.asked_in_vain = False
        if self._rooms.are_owed:
            return
        while not self._stopping.stopping and self._running_count() < self._most_at_once():
            trial_run = self._chosen()
            if trial_run is not None:
                try:
                    self._launcher.requests.fit(trial_run)
                    if not self._trials.ledger.fits(trial_run.wanted) or not self._rooms.may_start(trial_run):
                        return
                except (ConfigError, StartupTimeoutError) as error:  # There is no room for it, and will not be.
                    self._endings.failed_in_driver(trial_run, error)
                    continue
                self._start(trial_run)
            elif not self._create_trial():
                self._resolve_stall()
                self._warn_of_idle_searcher()
                return

    def _chosen(self) -> TrialRun | None:
        """The trial that the scheduler wants to run, which it may have changed in the same moment."""
        try:
            with self._audience.guarded():
                chosen = self._setup.scheduler.choose_trial_to_run(self._controller)
        finally:
            self._endings.carry_out_queued()
        if chosen is None:
            return None
        if not isinstance(chosen, Trial) or chosen not in self._trials.waiting:
            raise ConfigError(
                f"{type(self._setup.scheduler).__name__}.choose_trial_to_run() returned {chosen!r}: return one of "
                "controller.waiting_trials(), or None."
            )
        return self._trials.waiting[chosen]

    def _running_count(self) -> int:
        if self._launcher.runs_in_this_process:  # also those that are about to end
            return len(self._trials.active)
        return self._trials.holding_resources

    def _most_at_once(self) -> int:
        if self._launcher.runs_in_this_process:
            return 1
        # Trials that ask for nothing, or for very little, would all start at once.
        sensible = max(16, int(8 * self._trials.ledger.total.get("CPU", 1.0)))
        return self._setup.tune.max_concurrent_trials or sensible

    def _create_trial(self) -> bool:
        """Ask the searcher for a trial; False if there is none to be had now."""
        total = self._setup.total
        if self._trials.are_complete or (total is not None and len(self._trials) >= total):
            self._trials.are_complete = True
            return False
        if any(trial.status == "PENDING" for trial in self._trials.waiting):
            return False  # one is waiting for resources already
        number = len(self._trials)
        trial_id = self._launcher.place.trial_id(number)
        with self._audience.guarded():
            suggestion = self._setup.searcher.suggest(trial_id)
        if suggestion == Searcher.FINISHED:
            self._trials.are_complete = True
            return False
        if suggestion is None:
            self.asked_in_vain = True
            return False
        rng = random.Random(f"{self._setup.seed}/{number}")
        config, evaluated = resolve(self._setup.found, suggestion, rng)
        for name, value in evaluated.items():
            reject_secret(tuple(name.split("/")), value)
        trial_run = self._launcher.new_trial(number, config, evaluated)
        with self._audience.guarded():
            self._setup.scheduler.on_trial_add(self._controller, trial_run.trial)
        self._journal.trial_created(
            number,
            {
                "id": trial_id,
                "dir": trial_run.directory.name,
                "tag": trial_run.trial.experiment_tag,
                "config": describe(masked(trial_run.trial.config)),
                "evaluated": evaluated_record(self._setup.found, trial_run.trial.evaluated_params),
            },
        )
        self._journal.flush()  # before anything of the trial exists
        self._endings.carry_out_queued()
        return True

    def _start(self, trial_run: TrialRun) -> None:
        """Let a trial that waits run: for the first time, or where it was."""
        trial = trial_run.trial
        was_paused = trial.status == "PAUSED"
        if trial_run.change is not None and trial_run.change.resources is not None:
            trial_run.set_resources(trial_run.change.resources)
        self._trials.take_resources(trial_run)
        self._trials.no_longer_waits(trial_run)
        if was_paused:
            self._journal.append(TrialResumed(n=trial_run.number))
        trial.status = "RUNNING"
        self._audience.trial_changed(trial)
        self._trials.activate(trial_run)
        was_restored = trial_run.run is None
        if was_restored:
            self._make_run(trial_run)
        if trial_run.change is not None:
            self._carry_out_change(trial_run)
        elif trial_run.run is not None and not was_restored:
            trial_run.run.decided(CONTINUE)

    def _carry_out_change(self, trial_run: TrialRun) -> None:
        """Let a trial continue as the scheduler wants it, once there is a run: datasets may have to be prepared."""
        if trial_run.run is not None and trial_run.change is not None:
            change, trial_run.change = trial_run.change, None
            trial_run.run.decided(self._decisions.restarted(trial_run, change))

    def _make_run(self, trial_run: TrialRun) -> None:
        try:
            self._launcher.make_run(trial_run, TrialDecider(self._decisions, trial_run))
        except Exception as error:
            self._endings.failed_in_driver(trial_run, error)

    def take_built_run(self, trial_run: TrialRun) -> None:
        """Take the run that was built in the background, if it is ready."""
        if trial_run.building is None or not trial_run.building.done():
            return
        built, trial_run.building = trial_run.building, None
        trial_run.run = built.result()
        self._carry_out_change(trial_run)
        if self._stopping.stopping:
            self._stopping.stop_run(trial_run.run)

    def _resolve_stall(self) -> None:
        """Nothing runs, nothing can start and nothing more comes for now: the scheduler is to let something go.

        A searcher may wait for trials that wait themselves, and a trial that was chosen by nobody keeps others from
        being created: the end of all that wait is the only way on.
        """
        if self._trials.are_busy or self._stopping.stopping or not self._trials.waiting:
            return
        self._journal.append(Stalled())
        try:
            with self._audience.guarded():
                self._setup.scheduler.on_stall(self._controller)
        finally:
            self._endings.carry_out_queued()
        if self._chosen() is None and self._trials.waiting and not self._trials.are_busy:
            stuck = ", ".join(str(trial) for trial in list(self._trials.waiting)[:3])
            self._audience.warn_once(f"The scheduler lets no trial continue; {stuck} and others are ended as they are.")
            for trial_run in list(self._trials.waiting.values()):
                self._endings.stop_waiting(trial_run)

    def _warn_of_idle_searcher(self) -> None:
        """Nothing is left that could change a searcher's mind: it may wait for something outside, or for ever."""
        if not self.asked_in_vain or self._trials.active or self._trials.waiting:
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since > IDLE_S:
            self._audience.warn_once(
                f"{type(self._setup.searcher).__name__} suggests nothing, although no trial is left that it could wait "
                "for. It is asked again until it does; Ctrl-C ends the search."
            )
