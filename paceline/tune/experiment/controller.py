"""The experiment as schedulers see it."""

from __future__ import annotations

from paceline.run.decisions import Stop
from paceline.run.trial import Trial
from paceline.tune.experiment.place import ExperimentPlace
from paceline.tune.experiment.setup import SearchSetup
from paceline.tune.experiment.trials import Trials
from paceline.tune.schedulers.trial_scheduler import Restart


class ExperimentController:
    """Answers a scheduler's questions, and takes down what it decides about trials that wait.

    The experiment acts on that when the scheduler has returned, so that nothing calls it while it is at it. In a replay
    nothing is taken down: what came of it is in the journal too.
    """

    def __init__(self, setup: SearchSetup, place: ExperimentPlace, trials: Trials) -> None:
        self._setup = setup
        self._place = place
        self._trials = trials
        self.replaying = False
        self._queued: list[tuple[Trial, Stop | Restart]] = []

    @property
    def metric(self) -> str | None:
        return self._setup.metric

    @property
    def mode(self) -> str | None:
        return self._setup.mode

    @property
    def experiment_path(self) -> str:
        return str(self._place.root)

    @property
    def expects_more_trials(self) -> bool:
        return not self._trials.are_complete

    @property
    def total_resources(self) -> dict[str, float]:
        return dict(self._trials.ledger.total)

    @property
    def free_resources(self) -> dict[str, float]:
        return self._trials.ledger.free

    def get_trials(self) -> list[Trial]:
        return [trial_run.trial for trial_run in self._trials]

    def waiting_trials(self) -> list[Trial]:
        stopped = {trial for trial, decision in self._queued if isinstance(decision, Stop)}
        return [trial for trial in self._trials.waiting if trial not in stopped]

    def has_resources_for(self, trial: Trial) -> bool:
        return self._trials.ledger.fits(self._trials.of(trial).request)

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
