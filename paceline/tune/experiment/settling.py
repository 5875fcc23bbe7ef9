"""What becomes of each trial of an earlier driver, once its records have been replayed.

A trial that ended is not run again: its outcome is in the experiment's journal, or, if the driver was
killed in that very moment, in the trial's own. One that was under way goes on from its newest
checkpoint.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from paceline.air.errors import CheckpointError, RestoreError, StorageError, TrainingFailedError
from paceline.air.manifest import read_manifest
from paceline.air.result import Status
from paceline.run.history import JournalHistory, load_result
from paceline.run.trial_files import ending, state_records
from paceline.storage.run_dir import RunDir
from paceline.tune.experiment.experiment import Experiment
from paceline.tune.experiment.outcomes import last_metrics, outcome_from_files
from paceline.tune.experiment.remote import fetch_trial
from paceline.tune.experiment.replay import Replay
from paceline.tune.experiment.trial_run import TrialRun
from paceline.tune.schedulers.trial_scheduler import Restart, TrialScheduler
from paceline.tune.search.searcher import tell_complete


@dataclass(frozen=True)
class ResumeRules:
    """What becomes of the trials of the earlier driver."""

    unfinished: bool = True
    """Trials that had not ended go on; otherwise they are left as they are, for a later restore."""
    errored: bool = False
    """Failed trials go on from their newest checkpoint."""
    restart_errored: bool = False
    """Failed trials start anew."""


class Settlement:
    """Decides what becomes of the trials, and writes that down."""

    def __init__(self, experiment: Experiment, replay: Replay, rules: ResumeRules) -> None:
        self._experiment = experiment
        self._replay = replay
        self._rules = rules
        self._filesystem = experiment.plan.run_config.storage_filesystem
        self._left: dict[TrialRun, Status] = {}
        """Those that the rules leave as they are."""

    def run(self) -> None:
        trials = self._experiment.trials
        # The end of one may lead the scheduler to stop another, so that all must be known before.
        endings = {each: self._look_at_files(each) for each in trials if each.number not in self._replay.ended}
        for each in trials:
            self._settle(each, endings.get(each))
        for each, status in self._left.items():
            self._tell_left(each, status)
        for each in list(self._experiment.waiting.values()):
            self._decide_late(each)

    def _look_at_files(self, each: TrialRun) -> Status | None:
        """How a trial of which no end is recorded ended by its own files, if it did; None without files."""
        if self._experiment.place.uri is not None:
            fetch_trial(each.trial, each.directory, self._filesystem)
        status = self._ending_of(each)
        each.has_files = status is not None
        if each.has_files:  # others may want to go on from there
            each.trial.checkpoint = load_result(each.trial.path, self._filesystem).checkpoint
        return status

    def _settle(self, each: TrialRun, status: Status | None) -> None:
        """What becomes of a trial now."""
        if each.number in self._replay.ended:
            if self._replay.ended[each.number]["status"] == "failed":
                self._maybe_again(each)
            return
        if each.outcome is not None:
            return  # the scheduler has just stopped it
        if each.number in self._replay.stopped or status in ("finished", "failed"):
            self._end_now(each, "failed" if status == "failed" else "finished")
        elif not self._rules.unfinished:
            self._experiment.waiting.pop(each.trial, None)
            self._left[each] = status or "unfinished"
        elif each.trial.status == "RUNNING":
            each.trial.status = "PAUSED" if each.has_files else "PENDING"
            self._experiment.waiting[each.trial] = each
            handover = self._replay.handovers.get(each.number)
            if handover is not None and not _has_copy(each, str(handover.donor)):
                each.change = handover

    def _decide_late(self, each: TrialRun) -> None:
        """Decide on rows of which the driver died before a decision was written down.

        Those up to the newest checkpoint are not reported again when the trial goes on from there.
        """
        reached = _newest_checkpoint(each.directory) if each.has_files else 0
        if reached <= each.seen or each.trial not in self._experiment.waiting:
            return
        rows = JournalHistory(RunDir(each.directory).journal).rows()[each.seen : reached]
        with self._experiment.audience.guarded():
            for index, row in enumerate(rows, each.seen + 1):
                decision = self._experiment.decisions.after_earlier_row(each, index, row)
                if decision == TrialScheduler.STOP:
                    self._end_now(each, "finished")
                    return
                if isinstance(decision, Restart):
                    self._experiment.change_waiting(each, decision)

    def _maybe_again(self, each: TrialRun) -> None:
        if not self._rules.errored and not self._rules.restart_errored:
            return
        directory = each.directory.name
        if self._rules.restart_errored:
            directory = self._experiment.place.free_name(each.directory.name)
        each.was_told = True
        self._experiment.journal.event("again", each.number, dir=directory)
        self._experiment.reopen(each, directory)
        each.has_files = not self._rules.restart_errored and self._ending_of(each) is not None

    def _ending_of(self, each: TrialRun) -> Status | None:
        """How the trial's own journal says that it ended; None if it has no run that could be resumed."""
        run_dir = RunDir(each.directory)
        try:
            return ending(state_records(run_dir)) or "unfinished"
        except (RestoreError, StorageError) as error:
            if not run_dir.has_barely_begun():
                self._experiment.audience.warn_once(f"{each.trial} has to start over: {error}")
            return None

    def _tell_left(self, each: TrialRun, status: Status) -> None:
        """Go on without a trial. Nothing is written down: a later restore can still continue it.

        Searcher and scheduler must not wait for it, nor take what it has reached for its end.
        """
        experiment, metrics = self._experiment, last_metrics(each, done=status != "unfinished")
        each.forget_change()
        each.trial.status = "TERMINATED"
        each.trial.last_result = metrics or each.trial.last_result
        each.outcome = outcome_from_files(each, status, metrics, None, self._filesystem)
        if metrics:
            experiment.view.note_row(each.trial, metrics)
        experiment.audience.trial_changed(each.trial)
        with experiment.audience.guarded():
            if not each.was_told:
                tell_complete(experiment.plan.searcher, each.trial.trial_id)
            experiment.plan.scheduler.on_trial_remove(experiment.controller, each.trial)

    def _end_now(self, each: TrialRun, status: Status) -> None:
        """Write down the end that the earlier driver did not come to write."""
        self._experiment.waiting.pop(each.trial, None)
        metrics = last_metrics(each)
        error = TrainingFailedError(_error_of(each.directory)) if status == "failed" else None
        each.trial.status = "ERROR" if error is not None else "TERMINATED"
        each.trial.last_result = metrics or each.trial.last_result
        self._experiment.trial_ended(each, outcome_from_files(each, status, metrics, error, self._filesystem))


def _newest_checkpoint(directory: Path) -> int:
    """The index of the row that the trial's newest checkpoint was reported with; 0 without one."""
    run_dir = RunDir(directory)
    iterations = {each["number"]: each["iteration"] for each in state_records(run_dir) if each["kind"] == "checkpoint"}
    for number, path in run_dir.checkpoints():
        if number not in iterations:  # the driver died before it was written down
            with contextlib.suppress(CheckpointError):
                iterations[number] = read_manifest(path).facts["iteration"]
    return iterations[max(iterations)] if iterations else 0


def _has_copy(each: TrialRun, donor: str) -> bool:
    """Whether the state that the trial was to take over at its last row is there."""
    for _, path in RunDir(each.directory).checkpoints():
        with contextlib.suppress(CheckpointError):  # one that is damaged is passed over when the trial goes on
            facts = read_manifest(path).facts
            if facts.get("copied_from") == donor and facts.get("iteration") == each.seen:
                return True
    return False


def _error_of(directory: Path) -> str:
    ends = [record for record in state_records(RunDir(directory)) if record["kind"] == "end"]
    return str(ends[-1].get("message", "")) if ends else ""
