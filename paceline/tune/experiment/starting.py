"""Which trial starts next: one that the scheduler chooses, else a new one that the searcher suggests."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from paceline.air.errors import ConfigError
from paceline.air.secrets import masked
from paceline.run.trial import Trial
from paceline.tune.experiment.trial_run import TrialRun
from paceline.tune.search.paths import reject_secret
from paceline.tune.search.searcher import Searcher
from paceline.tune.search.space import describe, evaluated_record, resolve

if TYPE_CHECKING:
    from paceline.tune.experiment.experiment import Experiment

IDLE_S = 10.0
"""How long a searcher may suggest nothing, with no trial left, before the user is told."""


class Starter:
    """Starts trials as far as the resources go."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._plan = experiment.plan
        self.asked_in_vain = False
        """The searcher had no suggestion; it is asked again when something has happened."""
        self._idle_since = time.monotonic()

    def start_more(self) -> None:
        """Start what the scheduler chooses, else what the searcher suggests, as far as the resources go."""
        self.asked_in_vain = False
        while not self._experiment.stop.stopping and self._running_count() < self._most_at_once():
            with self._experiment.audience.guarded():
                each = self._chosen()
            if each is not None:
                if not self._experiment.ledger.fits(each.request):
                    return
                self._start(each)
            elif not self._create_trial():
                self._tell_of_stall()
                self._warn_of_idle_searcher()
                return

    def _chosen(self) -> TrialRun | None:
        """The trial that the scheduler wants to run."""
        chosen = self._plan.scheduler.choose_trial_to_run(self._experiment.controller)
        if chosen is None:
            return None
        if not isinstance(chosen, Trial) or chosen not in self._experiment.waiting:
            raise ConfigError(
                f"{type(self._plan.scheduler).__name__}.choose_trial_to_run() returned {chosen!r}: return one of "
                "controller.waiting_trials(), or None."
            )
        return self._experiment.waiting[chosen]

    def _running_count(self) -> int:
        if self._experiment.runs_in_this_process:  # also those that are about to end
            return len(self._experiment.active)
        return sum(1 for each in self._experiment.active if each.grant is not None)

    def _is_busy(self) -> bool:
        """Whether some trial is at work, or ending: its end may change what the scheduler and the searcher want."""
        return any(each.trial not in self._experiment.waiting for each in self._experiment.active)

    def _most_at_once(self) -> int:
        if self._experiment.runs_in_this_process:
            return 1
        # Trials that ask for nothing, or for very little, would all start at once.
        sensible = max(16, int(8 * self._experiment.ledger.total.get("CPU", 1.0)))
        return self._plan.tune.max_concurrent_trials or sensible

    def _create_trial(self) -> bool:
        """Ask the searcher for a trial; False if there is none to be had now."""
        total = self._plan.total
        if self._experiment.created_all or (total is not None and len(self._experiment.trials) >= total):
            self._experiment.created_all = True
            return False
        if any(trial.status == "PENDING" for trial in self._experiment.waiting):
            return False  # one is waiting for resources already
        number = len(self._experiment.trials)
        trial_id = self._experiment.place.trial_id(number)
        with self._experiment.audience.guarded():
            suggestion = self._plan.searcher.suggest(trial_id)
        if suggestion == Searcher.FINISHED:
            self._experiment.created_all = True
            return False
        if suggestion is None:
            self.asked_in_vain = True
            return False
        rng = random.Random(f"{self._plan.seed}/{number}")
        config, evaluated = resolve(self._plan.space, suggestion, rng, self._plan.found)
        for name, value in evaluated.items():
            reject_secret(tuple(name.split("/")), value)
        each = self._experiment.new_trial(number, config, evaluated)
        with self._experiment.audience.guarded():
            self._plan.scheduler.on_trial_add(self._experiment.controller, each.trial)
        self._experiment.journal.trial_created(
            number,
            {
                "id": trial_id,
                "dir": each.directory.name,
                "tag": each.trial.experiment_tag,
                "config": describe(masked(each.trial.config)),
                "evaluated": evaluated_record(self._plan.space, each.trial.evaluated_params),
            },
        )
        self._experiment.journal.flush()  # before anything of the trial exists
        return True

    def _start(self, each: TrialRun) -> None:
        """Let a trial that waits run: for the first time, or where it was."""
        trial = each.trial
        was_paused = trial.status == "PAUSED"
        if each.change is not None and each.change.resources is not None:
            each.set_resources(each.change.resources)
        each.grant = self._experiment.ledger.take(each.request)
        self._experiment.waiting.pop(trial, None)
        if was_paused:
            self._experiment.journal.event("run", each.number)
        trial.status = "RUNNING"
        self._experiment.audience.trial_changed(trial)
        self._experiment.active[each] = None
        each.due = 0.0
        was_restored = each.run is None
        if was_restored:
            self._make_run(each)
        if each.change is not None:
            self.carry_out_change(each)
        elif each.run is not None and not was_restored:
            each.run.resume()

    def carry_out_change(self, each: TrialRun) -> None:
        """Let a trial go on as the scheduler wants it, as soon as there is a run: datasets may have to be prepared."""
        if each.run is not None and each.change is not None:
            change, each.change = each.change, None
            self._experiment.decisions.go_on_changed(each, each.run, change)

    def _make_run(self, each: TrialRun) -> None:
        experiment, decisions = self._experiment, self._experiment.decisions
        try:
            experiment.launcher.make_run(each, decisions.after_row, decisions.may_decide)
        except Exception as error:
            if experiment.audience.user_error is not None or experiment.concerns_all_trials(error):
                raise
            experiment.break_off_trial(each, error)

    def _tell_of_stall(self) -> None:
        """Nothing runs, nothing can start and nothing more comes for now: the scheduler is to let something go.

        A searcher may wait for trials that wait themselves, and a trial that was chosen by nobody keeps others from
        being created: the end of all that wait is the only way on.
        """
        if self._is_busy() or self._experiment.stop.stopping or not self._experiment.waiting:
            return
        self._experiment.journal.stall()
        with self._experiment.audience.guarded():
            self._plan.scheduler.on_stall(self._experiment.controller)
            chosen = self._chosen()
        if chosen is None and self._experiment.waiting and not self._is_busy():
            stuck = ", ".join(str(trial) for trial in list(self._experiment.waiting)[:3])
            self._experiment.audience.warn_once(
                f"The scheduler lets no trial go on; {stuck} and others are ended as they are."
            )
            for each in list(self._experiment.waiting.values()):
                self._experiment.stop_waiting(each)

    def _warn_of_idle_searcher(self) -> None:
        """Nothing is left that could change a searcher's mind: it may wait for something outside, or for ever."""
        if not self.asked_in_vain or self._experiment.active or self._experiment.waiting:
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since > IDLE_S:
            self._experiment.audience.warn_once(
                f"{type(self._plan.searcher).__name__} suggests nothing, although no trial is left that it could wait "
                "for. It is asked again until it does; Ctrl-C ends the search."
            )
