"""Takes each row to whoever may decide about it, and keeps as much of it as a restore needs to decide the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline.air.constants import DONE
from paceline.run.nested import nested_get
from paceline.run.stoppers import DictStopper, MaximumIterationStopper, NoopStopper, Stopper, TimeoutStopper
from paceline.tune.experiment.records import ExperimentJournal
from paceline.tune.experiment.setup import SearchSetup
from paceline.tune.experiment.trials import TrialRun
from paceline.tune.schedulers.trial_scheduler import Decision, Restart, TrialScheduler

Row = dict[str, Any]
AskScheduler = Callable[[TrialRun, Row], Decision]

_FORGETFUL = (DictStopper, MaximumIterationStopper, NoopStopper, TimeoutStopper)
"""Stoppers that look at one row at a time: they need not see the rows again."""

_RESTART = "RESTART"


class RowRecorder:
    """The way of a row through stopper, searcher and scheduler."""

    def __init__(
        self, setup: SearchSetup, stopper: Stopper | None, journal: ExperimentJournal, ask_scheduler: AskScheduler
    ) -> None:
        self._ask_scheduler = ask_scheduler
        self._searcher = setup.searcher
        self._stopper = stopper
        self._journal = journal
        self._scheduler_decides = setup.scheduler.decides
        self._searcher_listens = setup.searcher.wants_results
        self._stopper_remembers = stopper is not None and not isinstance(stopper, _FORGETFUL)
        self.may_decide = stopper is not None or self._scheduler_decides
        """Whether a row can be the last, so that workers wait for the answer to each."""
        self._stops_when_done = setup.kind.stops_when_done
        self._keeps = self._scheduler_decides or self._searcher_listens or self._stopper_remembers
        keys = setup.scheduler.result_keys if self._scheduler_decides else ()
        self._keys = None if self._searcher_listens or self._stopper_remembers else keys
        """What is kept of a row; None: all of it."""

    def take(self, trial_run: TrialRun, index: int, row: Row) -> Decision:
        """What shall become of the trial after this row."""
        decision = self._decision(trial_run, row)
        continues = decision in (TrialScheduler.CONTINUE, TrialScheduler.NOOP)
        if self._keeps or not continues:
            kept = self._part_of(row) if self._keeps else {}
            self._journal.row(trial_run.number, index, kept, None if continues else _name(decision))
        return decision

    def stops_again(self, trial_run: TrialRun, index: int, row: Row) -> bool:
        """Whether a row that a retry reports again ends the trial. Only stoppers that look at one row at a time are
        asked: others have counted it already."""
        stops = (
            self._stopper is not None and not self._stopper_remembers and self._stopper(trial_run.trial.trial_id, row)
        )
        if not stops and not self._says_done(row):
            return False
        self._journal.row(trial_run.number, index, {}, TrialScheduler.STOP)
        return True

    def _decision(self, trial_run: TrialRun, row: Row) -> Decision:
        stops = self._stopper is not None and self._stopper(trial_run.trial.trial_id, row)
        if self._searcher_listens:
            self._searcher.on_trial_result(trial_run.trial.trial_id, row)
        # The scheduler sees every row, the last one too: others are compared with it.
        decision = self._ask_scheduler(trial_run, row) if self._scheduler_decides else TrialScheduler.CONTINUE
        return TrialScheduler.STOP if stops or self._says_done(row) else decision

    def _says_done(self, row: Row) -> bool:
        """Whether the trial says itself that there is nothing more to do."""
        return row.get(DONE) is True and (self.may_decide or self._stops_when_done)

    def replay(self, trial_run: TrialRun, row: Row, decision: str | None, *, to_searcher: bool) -> bool:
        """Show a recorded row to all again; False if the scheduler now decides otherwise."""
        if not self._keeps or not row:
            return True
        if self._stopper_remembers and self._stopper is not None:
            self._stopper(trial_run.trial.trial_id, row)
        if self._searcher_listens and to_searcher:
            self._searcher.on_trial_result(trial_run.trial.trial_id, row)
        if not self._scheduler_decides:
            return True
        name = _name(self._ask_scheduler(trial_run, row))
        if decision in (TrialScheduler.STOP, _RESTART):  # a stopper's word, or shares of resources that were free then
            return True
        return name == (decision or TrialScheduler.CONTINUE) or name == TrialScheduler.NOOP

    def _part_of(self, row: Row) -> Mapping[str, Any]:
        if self._keys is None:
            return {key: value for key, value in row.items() if key != "config"}
        return {key: value for key in self._keys if (value := nested_get(row, key)) is not None}


def _name(decision: Decision) -> str:
    return _RESTART if isinstance(decision, Restart) else decision
