"""Does what is asked of the driver of a search from outside: about the search, or about one of its trials."""

from __future__ import annotations

from paceline.run.inbox import Answer, Glances, Inbox, Request
from paceline.run.run import Run
from paceline.storage.run_dir import requests_of_search
from paceline.tune.experiment.ending import Endings, Stopping
from paceline.tune.experiment.trials import Shared, TrialRun


class SearchDesk:
    """Answers requests. Trials that have no run open have no driver to be asked."""

    def __init__(self, shared: Shared, stopping: Stopping, endings: Endings) -> None:
        self._shared = shared
        self._stopping = stopping
        self._endings = endings
        self._inbox = Inbox(requests_of_search(shared.place.journal), shared.files.holder)
        self._inbox.clear()
        self._glances = Glances()

    def look(self) -> None:
        """Called at every step; once a second it looks."""
        if not self._glances.is_due():
            return
        for request, name in self._inbox.take():
            self._inbox.answer(name, self._asked_of_search(request))
        trials = self._shared.trials
        for trial_run in dict.fromkeys([*trials.active, *trials.waiting.values()]):
            if (run := trial_run.run) is not None:
                for request, name in run.inbox.take():
                    run.inbox.answer(name, self._asked_of_trial(trial_run, run, request))

    def _asked_of_search(self, request: Request) -> Answer:
        if request.what == "stacks":
            return Answer(refused="it is a search: ask one of its trials.")
        self._stopping.asked_from_outside(request.sender)
        return Answer()

    def _asked_of_trial(self, trial_run: TrialRun, run: Run, request: Request) -> Answer:
        if request.what == "stacks":
            return run.stacks()
        if not self._stopping.stopping and not run.stop.pending and not run.is_over:
            self._shared.audience.note(
                f"{trial_run.trial} ends at its next report, as {request.sender} asked from outside."
            )
            self._stop(trial_run, run)
        return Answer()

    def _stop(self, trial_run: TrialRun, run: Run) -> None:
        """As if its scheduler had decided it, so that scheduler and searcher learn that it is over."""
        if trial_run.trial in self._shared.trials.waiting:
            self._endings.stop_waiting(trial_run)
        else:
            run.stop_gracefully()
            trial_run.due = 0.0
