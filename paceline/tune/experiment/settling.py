"""What becomes of each trial of an earlier driver, once its records have been replayed.

A trial that ended is not run again: its outcome is in the experiment's journal, or, if the driver was
killed in that very moment, in the trial's own. One that was under way continues from its newest
checkpoint.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from paceline.air.errors import CheckpointError, RestoreError, StorageError, TrainingFailedError
from paceline.air.manifest import read_manifest
from paceline.air.result import Status
from paceline.run.history import JournalHistory, load_result
from paceline.run.records import CheckpointCommitted, RunRecords
from paceline.storage.run_dir import RunDir
from paceline.tune.experiment.deciding import change_waiting
from paceline.tune.experiment.experiment import Experiment
from paceline.tune.experiment.files import fetch_trial
from paceline.tune.experiment.records import TrialAgain
from paceline.tune.experiment.replay import Replay
from paceline.tune.experiment.trials import TrialRun
from paceline.tune.schedulers.trial_scheduler import Restart, TrialScheduler
from paceline.tune.search.searcher import report_completion
from paceline.tune.trial_outcome import last_metrics, outcome_from_files


@dataclass(frozen=True)
class ResumeRules:
    """What becomes of the trials of the earlier driver."""

    unfinished: bool = True
    """Trials that had not ended continue; otherwise they are left as they are, for a later restore."""
    errored: bool = False
    """Failed trials continue from their newest checkpoint."""
    restart_errored: bool = False
    """Failed trials start anew."""


class Settlement:
    """Decides what becomes of the trials, and writes that down."""

    def __init__(self, experiment: Experiment, replay: Replay, rules: ResumeRules) -> None:
        self._shared = shared = experiment.shared
        self._place, self._files, self._controller = shared.place, shared.files, shared.controller
        self._setup, self._trials, self._audience = shared.setup, shared.trials, shared.audience
        self._decisions = experiment.decisions
        self._endings = experiment.endings
        self._replay = replay
        self._rules = rules
        self._filesystem = shared.setup.run_config.storage_filesystem
        self._left: dict[TrialRun, Status] = {}
        """Those that the rules leave as they are."""

    def run(self) -> None:
        # The end of one may lead the scheduler to stop another, so that all must be known before.
        endings = {
            trial_run: self._look_at_files(trial_run)
            for trial_run in self._trials
            if trial_run.number not in self._replay.ended
        }
        for trial_run in self._trials:
            self._settle(trial_run, endings.get(trial_run))
        for trial_run, status in self._left.items():
            self._continue_without(trial_run, status)
        for trial_run in list(self._trials.waiting.values()):
            self._decide_late(trial_run)

    def _look_at_files(self, trial_run: TrialRun) -> Status | None:
        """How a trial of which no end is recorded ended by its own files, if it did; None without files."""
        if self._place.uri is not None:
            fetch_trial(trial_run.trial, trial_run.directory, self._filesystem)
        status = self._ending_of(trial_run)
        trial_run.has_files = status is not None
        if trial_run.has_files:  # others may want to continue from there
            trial_run.trial.checkpoint = load_result(trial_run.trial.path, self._filesystem).checkpoint
        return status

    def _settle(self, trial_run: TrialRun, status: Status | None) -> None:
        """What becomes of a trial now."""
        if trial_run.number in self._replay.ended:
            if self._replay.ended[trial_run.number].status == "failed":
                self._maybe_again(trial_run)
            return
        if trial_run.outcome is not None:
            return  # the scheduler has just stopped it
        if trial_run.number in self._replay.stopped or status in ("finished", "failed"):
            self._end_now(trial_run, "failed" if status == "failed" else "finished")
        elif not self._rules.unfinished:
            self._trials.no_longer_waits(trial_run)
            self._left[trial_run] = status or "unfinished"
        elif trial_run.trial.status == "RUNNING":
            trial_run.trial.status = "PAUSED" if trial_run.has_files else "PENDING"
            self._trials.wait(trial_run)
            handover = self._replay.handovers.get(trial_run.number)
            if handover is not None and not _has_copy(trial_run, str(handover.donor)):
                trial_run.change = handover

    def _decide_late(self, trial_run: TrialRun) -> None:
        """Decide on rows of which the driver died before a decision was written down.

        Those up to the newest checkpoint are not reported again when the trial continues from there.
        """
        reached = _newest_checkpoint(trial_run.directory) if trial_run.has_files else 0
        if reached <= trial_run.seen or trial_run.trial not in self._trials.waiting:
            return
        rows = islice(JournalHistory(RunDir(trial_run.directory).journal).rows(), trial_run.seen, reached)
        with self._audience.guarded():
            for index, row in enumerate(rows, trial_run.seen + 1):
                decision = self._decisions.after_earlier_row(trial_run, index, row)
                self._endings.carry_out_queued()
                if decision == TrialScheduler.STOP:
                    self._end_now(trial_run, "finished")
                    return
                if decision == TrialScheduler.PAUSE:  # one that is PENDING keeps others from being created
                    trial_run.trial.status = "PAUSED"
                if isinstance(decision, Restart):
                    change_waiting(self._shared, trial_run, decision)

    def _maybe_again(self, trial_run: TrialRun) -> None:
        if not self._rules.errored and not self._rules.restart_errored:
            return
        directory = trial_run.directory.name
        if self._rules.restart_errored:
            directory = self._place.free_name(trial_run.directory.name)
        trial_run.searcher_knows_end = True
        self._files.journal.append(TrialAgain(n=trial_run.number, dir=directory))
        self._endings.reopen(trial_run, directory)
        trial_run.has_files = not self._rules.restart_errored and self._ending_of(trial_run) is not None

    def _ending_of(self, trial_run: TrialRun) -> Status | None:
        """How the trial's own journal says that it ended; None if it has no run that could be resumed."""
        run_dir = RunDir(trial_run.directory)
        try:
            return RunRecords.read(run_dir).ended_as or "unfinished"
        except (RestoreError, StorageError) as error:
            if not run_dir.has_barely_begun():
                self._audience.warn_once(f"{trial_run.trial} has to start over: {error}")
            return None

    def _continue_without(self, trial_run: TrialRun, status: Status) -> None:
        """Go on without a trial. Nothing is written down: a later restore can still continue it.

        Searcher and scheduler must not wait for it, nor take what it has reached for its end.
        """
        metrics = last_metrics(trial_run, done=status != "unfinished")
        trial_run.forget_change()
        trial_run.trial.status = "TERMINATED"
        trial_run.trial.last_result = metrics or trial_run.trial.last_result
        trial_run.outcome = outcome_from_files(trial_run.trial, status, metrics, None, self._filesystem)
        self._audience.trial_changed(trial_run.trial, metrics)
        with self._audience.guarded():
            if not trial_run.searcher_knows_end:
                report_completion(self._setup.searcher, trial_run.trial.trial_id)
            self._setup.scheduler.on_trial_remove(self._controller, trial_run.trial)
        self._endings.carry_out_queued()

    def _end_now(self, trial_run: TrialRun, status: Status) -> None:
        """Write down the end that the earlier driver did not come to write."""
        self._trials.no_longer_waits(trial_run)
        metrics = last_metrics(trial_run)
        error = TrainingFailedError(_error_of(trial_run.directory)) if status == "failed" else None
        trial_run.trial.status = "ERROR" if error is not None else "TERMINATED"
        trial_run.trial.last_result = metrics or trial_run.trial.last_result
        outcome = outcome_from_files(trial_run.trial, status, metrics, error, self._filesystem)
        self._endings.trial_ended(trial_run, outcome)


def _newest_checkpoint(directory: Path) -> int:
    """The index of the row that the trial's newest checkpoint was reported with; 0 without one."""
    run_dir = RunDir(directory)
    records = RunRecords.read(run_dir)
    iterations = {record.number: record.iteration for record in records if isinstance(record, CheckpointCommitted)}
    for number, path in run_dir.checkpoints():
        if number not in iterations:  # the driver died before it was written down
            with contextlib.suppress(CheckpointError):
                iterations[number] = read_manifest(path).facts["iteration"]
    return iterations[max(iterations)] if iterations else 0


def _has_copy(trial_run: TrialRun, donor: str) -> bool:
    """Whether the state that the trial was to take over at its last row is there."""
    for _, path in RunDir(trial_run.directory).checkpoints():
        with contextlib.suppress(CheckpointError):  # one that is damaged is passed over when the trial continues
            facts = read_manifest(path).facts
            if facts.get("copied_from") == donor and facts.get("iteration") == trial_run.seen:
                return True
    return False


def _error_of(directory: Path) -> str:
    return RunRecords.read(RunDir(directory)).last_message
