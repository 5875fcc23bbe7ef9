"""When everything is to stop, and how: gently, at the next report of each trial."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from paceline.run.run import INTERRUPT_WAIT_S

if TYPE_CHECKING:
    from paceline.tune.experiment.experiment import Experiment

TRIALS_IN_VAIN = 10
"""Failures after which a search without end is given up, if no trial has reported anything."""


class Stopping:
    """The reasons to end an experiment before its time, and whether one of them holds."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._plan = experiment.plan
        self.stopping = False
        """No new trial is started."""
        self.interrupted = False
        """It is the driver that ends, not the experiment: it can be continued."""
        self.deadline = float("inf")
        """When everything is to be stopped because its time is up."""
        self.time_to_stop_s = INTERRUPT_WAIT_S
        """How long trials may take to their next report."""

    def look_for_reasons(self) -> None:
        if self.stopping:
            return
        if self._experiment.stopped_by_signal is not None:
            self._experiment.audience.progress.note(
                "Stopping: each trial ends at its next report. Press Ctrl-C again to stop immediately."
            )
            self.stop_everything(interrupted=True)
        elif time.monotonic() >= self.deadline:
            self.time_to_stop_s = self._wait_after_budget()
            self._experiment.audience.progress.note(
                "time_budget_s is used up: the running trials end at their next report, or without it in "
                f"{self.time_to_stop_s:.0f} s."
            )
            self.stop_everything(interrupted=False)
        else:
            with self._experiment.audience.guarded():
                if self._experiment.audience.stopper is not None and self._experiment.audience.stopper.stop_all():
                    self.stop_everything(interrupted=False)

    def _wait_after_budget(self) -> float:
        """A tenth of the budget, within limits: the report that is waited for is worth something."""
        share = 0.1 * (self._plan.tune.budget_s or 0.0)
        return min(INTERRUPT_WAIT_S, max(share, self._plan.run_config.failure_config.stop_grace_s))

    def stop_everything(self, *, interrupted: bool) -> None:
        """No new trial; those that run end after their next report."""
        self.stopping = True
        self.interrupted = interrupted
        self.deadline = float("inf")
        for each in list(self._experiment.waiting.values()):
            if each.run is not None and not interrupted:
                self._experiment.stop_waiting(each)
            elif each.run is not None:
                each.run.stop_gracefully(interrupted=True)
                self._experiment.active[each] = None
                each.due = 0.0
        for each in list(self._experiment.active):
            if each.run is not None:
                each.run.stop_gracefully(interrupted=interrupted, within_s=self.time_to_stop_s)
                each.due = 0.0

    def give_up_if_nothing_works(self) -> None:
        """A search without end of which no trial has ever reported anything would fail for ever."""
        if self._plan.tune.num_samples != -1 or len(self._experiment.trials) < TRIALS_IN_VAIN or self.stopping:
            return
        ended = [each.outcome for each in self._experiment.trials[: 2 * TRIALS_IN_VAIN] if each.outcome is not None]
        if len(ended) >= TRIALS_IN_VAIN and all(outcome.error and not outcome.metrics for outcome in ended):
            self._experiment.audience.progress.warning(
                f"The first {len(ended)} trials failed before they had reported anything: the search is given up."
            )
            self.stop_everything(interrupted=True)
