"""The experiment as schedulers see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.run.trial import Trial
from paceline.tune.schedulers.trial_scheduler import Restart

if TYPE_CHECKING:
    from paceline.tune.experiment.experiment import Experiment


class ExperimentController:
    """Answers a scheduler's questions and does to waiting trials what it asks for.

    While an experiment is replayed nothing is done: what came of it is in the journal too.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.replaying = False

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
        return list(self._experiment.waiting)

    def has_resources_for(self, trial: Trial) -> bool:
        each = self._experiment.by_trial[trial]
        return self._experiment.ledger.fits(each.request)

    def stop_trial(self, trial: Trial) -> None:
        if not self.replaying and trial in self._experiment.waiting:
            self._experiment.stop_waiting(self._experiment.by_trial[trial])

    def restart_trial(self, trial: Trial, restart: Restart) -> None:
        if not self.replaying and trial in self._experiment.waiting:
            self._experiment.change_waiting(self._experiment.by_trial[trial], restart)
