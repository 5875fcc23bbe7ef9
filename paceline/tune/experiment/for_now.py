"""Names by which parts that are being rewritten still reach into the experiment. Goes away with them."""

from __future__ import annotations

from typing import Any

from paceline.run.trial import Trial
from paceline.tune.experiment.deciding import change_waiting
from paceline.tune.experiment.ending import Endings
from paceline.tune.experiment.files import ExperimentFiles
from paceline.tune.experiment.launching import Launcher
from paceline.tune.experiment.ledger import Ledger
from paceline.tune.experiment.records import ExperimentJournal
from paceline.tune.experiment.setup import SearchSetup
from paceline.tune.experiment.trials import TrialRun, Trials
from paceline.tune.progress.base import ExperimentView
from paceline.tune.schedulers.trial_scheduler import Restart
from paceline.tune.trial_outcome import TrialOutcome


class OldNames:
    setup: SearchSetup
    trials: Trials
    files: ExperimentFiles
    launcher: Launcher
    endings: Endings
    audience: Any

    @property
    def plan(self) -> SearchSetup:
        return self.setup

    @property
    def journal(self) -> ExperimentJournal:
        return self.files.journal

    @property
    def waiting(self) -> dict[Trial, TrialRun]:
        return self.trials.waiting

    @property
    def by_trial(self) -> dict[Trial, TrialRun]:
        return self.trials._by_trial

    @property
    def ledger(self) -> Ledger:
        return self.trials.ledger

    @property
    def view(self) -> ExperimentView:
        view: ExperimentView = self.audience.view
        return view

    @property
    def created_all(self) -> bool:
        return self.trials.are_complete

    @property
    def runs_in_this_process(self) -> bool:
        return self.launcher.runs_in_this_process

    def give_back(self, trial_run: TrialRun) -> None:
        self.trials.give_back(trial_run)

    def stop_waiting(self, trial_run: TrialRun) -> None:
        self.endings.stop_waiting(trial_run)

    def reopen(self, trial_run: TrialRun, directory: str) -> None:
        self.endings.reopen(trial_run, directory)

    def tell_end(self, trial_run: TrialRun, outcome: TrialOutcome, *, to_searcher: bool = True) -> None:
        self.endings.report_end(trial_run, outcome, to_searcher=to_searcher)

    def new_trial(self, number: int, config: dict[str, Any], evaluated: dict[str, Any], directory: str) -> TrialRun:
        return self.launcher.new_trial(number, config, evaluated, directory)

    def change_waiting(self, trial_run: TrialRun, restart: Restart) -> None:
        change_waiting(self.setup, self.trials, self.journal, trial_run, restart)
