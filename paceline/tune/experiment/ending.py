"""How trials end, and when all of them have to: gently, at the next report of each."""

from __future__ import annotations

import signal
import time

from paceline.air.constants import VALIDATION
from paceline.air.errors import ConfigError, DataError, SerializationError
from paceline.air.result import Result
from paceline.run.decisions import INTERRUPT_WAIT_S, PREEMPTION_SIGNALS, Stop
from paceline.run.run import Run
from paceline.tune.experiment.deciding import change_waiting
from paceline.tune.experiment.files import Memory
from paceline.tune.experiment.records import TrialStopped
from paceline.tune.experiment.trials import Shared, TrialRun
from paceline.tune.search.searcher import completion_call
from paceline.tune.trial_outcome import (
    TrialOutcome,
    last_metrics,
    original_error,
    outcome_from_files,
    outcome_of_result,
    outcome_without_run,
)

TRIALS_IN_VAIN = 10
"""Failures after which a search without end is given up, if no trial has reported anything."""


class Stopping:
    """The reasons to end an experiment before its time, and whether one of them holds."""

    def __init__(self, shared: Shared) -> None:
        self._setup, self._trials, self._audience = shared.setup, shared.trials, shared.audience
        self._journal = shared.files.journal
        self.signal: int | None = None
        """The signal that asked for the end."""
        self._asked_by = ""
        """Who asked from outside for the same."""
        self.stopping = False
        """No new trial is started."""
        self.interrupted = False
        """It is the driver that ends, not the experiment: it can be continued."""
        self.deadline = float("inf")
        """When everything is to be stopped because its time is up."""
        self.time_to_stop_s = INTERRUPT_WAIT_S
        """How long trials may take to their next report."""
        self.error: Exception | None = None
        """What fit() raises in the end, because of fail_fast="raise"."""

    def start_clock(self) -> None:
        """time_budget_s counts from now on."""
        if self._setup.tune.budget_s is not None:
            self.deadline = time.monotonic() + self._setup.tune.budget_s

    def look_for_reasons(self) -> None:
        if self.stopping:
            return
        if self.signal is not None:
            why, hurry = "Stopping", " Press Ctrl-C again to stop immediately."
            if self._asked_by:
                why, hurry = f"A stop was requested from outside, by {self._asked_by}", ""
            self._audience.note(f"{why}: each trial ends at its next report.{hurry}")
            self.stop_everything(interrupted=True)
        elif time.monotonic() >= self.deadline:
            self.time_to_stop_s = self._wait_after_budget()
            self._audience.note(
                "time_budget_s is used up: the running trials end at their next report, or without it in "
                f"{self.time_to_stop_s:.0f} s."
            )
            self.stop_everything(interrupted=False)
        else:
            with self._audience.guarded():
                if self._audience.stopper is not None and self._audience.stopper.stop_all():
                    self.stop_everything(interrupted=False)

    def asked_from_outside(self, sender: str) -> None:
        """Somebody wants the same as with Ctrl-C."""
        if not self.stopping and self.signal is None:
            self._asked_by = sender
            self.signal = signal.SIGINT

    def _wait_after_budget(self) -> float:
        """A tenth of the budget, within limits: the report that is waited for is worth something."""
        share = 0.1 * (self._setup.tune.budget_s or 0.0)
        return min(INTERRUPT_WAIT_S, max(share, self._setup.run_config.failure_config.stop_grace_s))

    def stop_everything(self, *, interrupted: bool) -> None:
        """No new trial; those that run end after their next report."""
        self.stopping = True
        self.interrupted = interrupted
        self.deadline = float("inf")
        for trial_run in list(self._trials.waiting.values()):
            if trial_run.run is not None and interrupted:
                trial_run.run.stop_gracefully(interrupted=True)
                self._trials.activate(trial_run)
            elif trial_run.run is not None:
                self.end_waiting_run(trial_run)
        for trial_run in list(self._trials.active):
            if trial_run.run is not None:
                self.stop_run(trial_run.run)
                trial_run.due = 0.0

    def stop_run(self, run: Run) -> None:
        """Have a trial that runs end after its next report, or when it has saved."""
        preempted = self.signal in PREEMPTION_SIGNALS
        run.stop_gracefully(interrupted=self.interrupted, preempted=preempted, within_s=self.time_to_stop_s)

    def end_waiting_run(self, trial_run: TrialRun) -> None:
        """End a trial that waits and has a run."""
        assert trial_run.run is not None
        self._trials.no_longer_waits(trial_run)
        self._journal.append(TrialStopped(n=trial_run.number))
        trial_run.forget_change()
        trial_run.run.decided(Stop())
        self._trials.activate(trial_run)

    def look_at(self, outcome: TrialOutcome) -> None:
        """Decide whether the end of a trial is a reason to end all: fail_fast, or no trial has ever worked."""
        self._give_up_if_nothing_works()
        failures = self._setup.run_config.failure_config
        if outcome.error is not None and failures.fail_fast and not self.stopping:
            self.time_to_stop_s = failures.stop_grace_s
            if failures.fail_fast == "raise" and isinstance(outcome.error, Exception):
                self.error = original_error(outcome.error)
            self.stop_everything(interrupted=True)

    def _give_up_if_nothing_works(self) -> None:
        """A search without end of which no trial has ever reported anything would fail for ever."""
        if self._setup.tune.num_samples != -1 or len(self._trials) < TRIALS_IN_VAIN or self.stopping:
            return
        first = [self._trials[number] for number in range(min(len(self._trials), 2 * TRIALS_IN_VAIN))]
        ended = [trial_run.outcome for trial_run in first if trial_run.outcome is not None]
        if len(ended) >= TRIALS_IN_VAIN and all(outcome.error and not outcome.metrics for outcome in ended):
            self._audience.warn(
                f"The first {len(ended)} trials failed before they had reported anything: the search is given up."
            )
            self.stop_everything(interrupted=True)


class Endings:
    """Takes trials out of the table when they end: records it, then reports it to display, searcher and scheduler."""

    def __init__(self, shared: Shared, stopping: Stopping) -> None:
        self._shared = shared
        self._setup, self._trials, self._audience = shared.setup, shared.trials, shared.audience
        self._files, self._controller = shared.files, shared.controller
        self._stopping = stopping
        self.memory = Memory(shared.place, shared.setup.searcher, shared.audience, shared.files.journal)
        self._complete = completion_call(shared.setup.searcher)  # looks at its signature: once is enough
        self._is_carrying_out = False

    def run_ended(self, trial_run: TrialRun, result: Result) -> None:
        """The trial's run is over. After an interruption the trial can be continued: it has not ended."""
        self._setup.kind.made_here(result)
        self._let_go(trial_run)
        if result.status == "interrupted":
            trial_run.trial.status = "PAUSED" if trial_run.trial.last_result else "PENDING"
            trial_run.outcome = outcome_of_result(trial_run.trial, result)
            self._audience.trial_changed(trial_run.trial)
            return
        self.trial_ended(trial_run, outcome_of_result(trial_run.trial, result))

    def failed_in_driver(self, trial_run: TrialRun, error: Exception) -> None:
        """Something went wrong here, not in a worker: raised if it concerns all trials, else the end of this one."""
        if self._audience.user_error is not None:
            self.carry_out_queued()  # what a scheduler had decided before it raised holds
            raise self._audience.user_error from self._audience.user_error.__cause__
        if self._concerns_all_trials(error):
            raise error
        run = trial_run.run
        trial_run.building = None
        if run is not None:
            run.break_off("failed", error)
            if run.result is not None:
                self.run_ended(trial_run, run.result)
                return
        self._let_go(trial_run)
        trial_run.trial.status = "ERROR"
        self.trial_ended(trial_run, outcome_without_run(trial_run, "failed", error))

    def _let_go(self, trial_run: TrialRun) -> None:
        trial_run.run = None
        self._trials.no_longer_active(trial_run)
        self._trials.give_back(trial_run)

    def _concerns_all_trials(self, error: Exception) -> bool:
        """Whether it is the trainable or its data that is wrong, not this one configuration."""
        if not isinstance(error, ConfigError | SerializationError | DataError):
            return False
        return not any(other.has_files or other.outcome for other in self._trials)

    def stop_waiting(self, trial_run: TrialRun) -> None:
        """End a trial that is PENDING or PAUSED."""
        if trial_run.run is not None:
            self._stopping.end_waiting_run(trial_run)
            return
        self._trials.no_longer_waits(trial_run)
        self._files.journal.append(TrialStopped(n=trial_run.number))
        trial_run.forget_change()
        trial_run.trial.status = "TERMINATED"
        if trial_run.has_files:
            self.trial_ended(trial_run, outcome_from_files(trial_run.trial, "finished", last_metrics(trial_run)))
        else:
            self.trial_ended(trial_run, outcome_without_run(trial_run, "finished"))

    def carry_out_queued(self) -> None:
        """Act on what the scheduler has decided about trials that wait. Ends of trials may lead it to decide more."""
        if self._is_carrying_out:
            return
        self._is_carrying_out = True
        try:
            while queued := self._controller.take_decisions():
                for trial, decision in queued:
                    if trial not in self._trials.waiting:
                        continue
                    if isinstance(decision, Stop):
                        self.stop_waiting(self._trials.of(trial))
                    else:
                        change_waiting(self._shared, self._trials.of(trial), decision)
        finally:
            self._is_carrying_out = False

    def trial_ended(self, trial_run: TrialRun, outcome: TrialOutcome) -> None:
        """A trial is over, well or not: record it, then report it."""
        self._trials.no_longer_waits(trial_run)  # the process of a trial that waits can die, too
        journal = self._files.journal
        metrics = {key: value for key, value in outcome.metrics.items() if key != "config"}
        journal.trial_ended(trial_run.number, outcome.status, metrics, str(outcome.error or ""), trial_run.judged_by)
        journal.flush()
        self._files.push()
        self.report_end(trial_run, outcome)
        self.carry_out_queued()
        self.memory.keep()
        self._stopping.look_at(outcome)

    def report_end(self, trial_run: TrialRun, outcome: TrialOutcome, *, to_searcher: bool = True) -> None:
        """Display, searcher and scheduler learn how a trial ended."""
        trial = trial_run.trial
        trial_run.outcome, trial.outcome = outcome, outcome.status
        failed = outcome.error is not None
        if not failed and not outcome.metrics and trial_run.has_files and not self._stopping.stopping:
            self._audience.warn_once(
                f"{trial} ended without having reported anything: return a dict of metrics, or call report()."
            )
        self._audience.trial_changed(trial, outcome.metrics, outcome.error)
        scheduler, metrics = self._setup.scheduler, outcome.metrics
        if self._setup.kind.validates:  # nobody decides by what depends on how fast a validation was
            metrics = {name: value for name, value in metrics.items() if name != VALIDATION}
        with self._audience.guarded():
            if to_searcher and not trial_run.searcher_knows_end:
                last = {**trial_run.judged_by, **metrics} if metrics else None
                self._complete({"trial_id": trial.trial_id, "result": last, "error": failed})
            if failed:
                scheduler.on_trial_error(self._controller, trial)
            elif trial_run.seen == 0 and not outcome.metrics:
                scheduler.on_trial_remove(self._controller, trial)
            else:
                scheduler.on_trial_complete(self._controller, trial, metrics)

    def reopen(self, trial_run: TrialRun, directory: str) -> None:
        """Give a trial that had failed another chance: for the scheduler, which saw it leave, it is a new one."""
        if directory != trial_run.directory.name:  # from its beginning: every row counts again
            trial_run.seen, trial_run.trial.last_result = 0, {}
        trial_run.directory = self._shared.place.assign(trial_run.trial, directory)
        trial_run.outcome, trial_run.searcher_knows_end = None, True
        trial_run.trial.status, trial_run.trial.outcome = "PENDING", None
        self._trials.wait(trial_run)
        self._setup.scheduler.on_trial_add(self._controller, trial_run.trial)
        self._audience.trial_changed(trial_run.trial)
