"""Which trial starts next: one that the scheduler chooses, else a new one that the searcher suggests."""

from __future__ import annotations

import random
import time

from paceline.air.errors import ConfigError
from paceline.air.secrets import masked
from paceline.run.decisions import CONTINUE
from paceline.run.spec import Trial
from paceline.tune.experiment.audience import Audience
from paceline.tune.experiment.deciding import Decisions, TrialDecider
from paceline.tune.experiment.ending import Endings, Stopping
from paceline.tune.experiment.launching import Launcher
from paceline.tune.experiment.records import ExperimentJournal, Stalled, TrialResumed
from paceline.tune.experiment.setup import SearchSetup
from paceline.tune.experiment.trials import TrialRun, Trials
from paceline.tune.schedulers.trial_scheduler import Controller
from paceline.tune.search.paths import reject_secret
from paceline.tune.search.searcher import Searcher
from paceline.tune.search.space import describe, evaluated_record, resolve

IDLE_S = 10.0
"""How long a searcher may suggest nothing, with no trial left, before the user is warned."""


class Starter:
    """Starts trials as far as the resources go."""

    def __init__(
        self,
        setup: SearchSetup,
        trials: Trials,
        audience: Audience,
        journal: ExperimentJournal,
        controller: Controller,
        launcher: Launcher,
        decisions: Decisions,
        stopping: Stopping,
        endings: Endings,
    ) -> None:
        self._setup = setup
        self._trials = trials
        self._audience = audience
        self._journal = journal
        self._controller = controller
        self._launcher = launcher
        self._decisions = decisions
        self._stopping = stopping
        self._endings = endings
        self.asked_in_vain = False
        """The searcher had no suggestion; it is asked again when something has happened."""
        self._idle_since = time.monotonic()

    def start_more(self) -> None:
        """Start what the scheduler chooses, else what the searcher suggests, as far as the resources go."""
        self.asked_in_vain = False
        while not self._stopping.stopping and self._running_count() < self._most_at_once():
            with self._audience.guarded():
                trial_run = self._chosen()
            if trial_run is not None:
                if not self._trials.ledger.fits(trial_run.request):
                    return
                self._start(trial_run)
            elif not self._create_trial():
                self._resolve_stall()
                self._warn_of_idle_searcher()
                return

    def _chosen(self) -> TrialRun | None:
        """The trial that the scheduler wants to run."""
        chosen = self._setup.scheduler.choose_trial_to_run(self._controller)
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
        config, evaluated = resolve(self._setup.space, suggestion, rng, self._setup.found)
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
                "evaluated": evaluated_record(self._setup.space, trial_run.trial.evaluated_params, self._setup.found),
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
            trial_run.run.stop_gracefully(
                interrupted=self._stopping.interrupted, within_s=self._stopping.time_to_stop_s
            )

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
        with self._audience.guarded():
            chosen = self._chosen()
        if chosen is None and self._trials.waiting and not self._trials.are_busy:
            stuck = ", ".join(str(trial) for trial in list(self._trials.waiting)[:3])
            self._audience.warn_once(f"The scheduler lets no trial go on; {stuck} and others are ended as they are.")
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
