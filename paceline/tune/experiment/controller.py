"""The experiment as schedulers see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.run.decisions import Stop
from paceline.run.trial import Trial
from paceline.tune.schedulers.trial_scheduler import Restart

if TYPE_CHECKING:
    from paceline.tune.experiment.experiment import Experiment


class ExperimentController:
    """Answers a scheduler's questions, and takes down what it decides about trials that wait.

    The experiment acts on that when the scheduler has returned, so that nothing calls it while it is at it. In a replay
    nothing is taken down: what came of it is in the journal too.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.replaying = False
        self._queued: list[tuple[Trial, Stop | Restart]] = []

    @property
    def metric(self) -> str | None:
        return self._experiment.plan.metric

    @property
    def mode(self) -> str | None:
        return self._experiment.plan.mode

    @property
    def experiment_path(self) -> str:
        return str(self._experiment.place.root)

    @property
    def expects_more_trials(self) -> bool:
        return not self._experiment.created_all

    @property
    def total_resources(self) -> dict[str, float]:
        return dict(self._experiment.ledger.total)

    @property
    def free_resources(self) -> dict[str, float]:
        return self._experiment.ledger.free

    def get_trials(self) -> list[Trial]:
        return list(self._experiment.view.trials)

    def waiting_trials(self) -> list[Trial]:
        stopped = {trial for trial, decision in self._queued if isinstance(decision, Stop)}
        return [trial for trial in self._experiment.waiting if trial not in stopped]

    def has_resources_for(self, trial: Trial) -> bool:
        each = self._experiment.by_trial[trial]
        return self._experiment.ledger.fits(each.request)

    def stop_trial(self, trial: Trial) -> None:
        self._decide(trial, Stop())

    def restart_trial(self, trial: Trial, restart: Restart) -> None:
        self._decide(trial, restart)

    def _decide(self, trial: Trial, decision: Stop | Restart) -> None:
        if not self.replaying:
            self._queued.append((trial, decision))

    def take_decisions(self) -> list[tuple[Trial, Stop | Restart]]:
        """What was decided since this was last called, in order."""
        queued, self._queued = self._queued, []
        return queued
