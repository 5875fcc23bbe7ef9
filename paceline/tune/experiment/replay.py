"""Takes an experiment up again: its records, read in order, lead searcher and scheduler to where they were.

A trial that ended is not run again: its outcome is in the journal, or, if the driver was
killed in that very moment, in the trial's own. One that was under way goes on from its newest
checkpoint. Places are relative, so the directory may have been moved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.errors import CheckpointError, RestoreError, StorageError, TrainingFailedError
from paceline.air.result import Status
from paceline.run.history import JournalHistory, load_result
from paceline.run.trial_files import ending, state_records
from paceline.storage.journal import read
from paceline.storage.manifest import read_manifest
from paceline.storage.run_dir import RunDir
from paceline.tune.experiment.deciding import values_in
from paceline.tune.experiment.outcomes import last_metrics, outcome_from_files
from paceline.tune.experiment.remote import fetch_trial
from paceline.tune.experiment.trial_run import TrialRun
from paceline.tune.schedulers.trial_scheduler import Restart, TrialScheduler
from paceline.tune.search.space import config_with, evaluated_from_record, from_description

if TYPE_CHECKING:
    from paceline.tune.experiment.experiment import Experiment

Record = dict[str, Any]


@dataclass(frozen=True)
class ResumeRules:
    """What becomes of the trials of the earlier driver."""

    unfinished: bool = True
    """Trials that had not ended go on; otherwise they are left as they are."""
    errored: bool = False
    """Failed trials go on from their newest checkpoint."""
    restart_errored: bool = False
    """Failed trials start anew."""


def read_records(journal: Path) -> list[Record]:
    """The records of an experiment; the first describes it."""
    try:
        records = list(read(journal))
    except FileNotFoundError:
        raise RestoreError(f"{journal.parent} holds no experiment: it has no {journal.name}.") from None
    if not records or records[0].get("kind") != "experiment":
        raise RestoreError(f"{journal} does not begin with an experiment's description; it cannot be continued.")
    for record in records:
        name = record.get("dir", "trial")
        if Path(name).name != name or name == "..":  # the files may come from anywhere
            raise RestoreError(f"{journal} names {name!r} as a trial's directory, which is not one below it.")
        if record.get("config") is not None:
            record["config"] = from_description(record["config"])
    return records


class Replay:
    """Brings an experiment that was just made to where its records end."""

    def __init__(self, experiment: Experiment, records: list[Record], rules: ResumeRules) -> None:
        self._experiment = experiment
        self._records = records
        self._rules = rules
        self._filesystem = experiment.plan.run_config.storage_filesystem
        self._ended: dict[int, Record] = {}
        self._stopped: set[int] = set()
        """Trials of which a STOP was decided and no end is recorded."""
        self._handovers: dict[int, Restart] = {}
        """Trials that were to go on from another's state and have reported nothing since."""
        self._searcher_knows = False
        """The searcher will be given a state in which it knows these records."""
        self._warned = False

    def run(self) -> None:
        experiment = self._experiment
        experiment.controller.replaying = True
        known_until = experiment.memory.newest_save(self._records)
        self._searcher_knows = known_until is not None
        try:
            for position, record in enumerate(self._records):
                self._take(record)
                if position == known_until:
                    experiment.memory.restore_searcher(record["saved"])
                    self._searcher_knows = False
        finally:
            experiment.controller.replaying = False
        for each in experiment.trials:
            self._settle(each)
        for each in list(experiment.waiting.values()):
            self._decide_late(each)

    def _take(self, record: Record) -> None:
        kind = record["kind"]
        if kind == "trial":
            self._create(record)
        elif kind == "stall":
            self._experiment.plan.scheduler.on_stall(self._experiment.controller)
        elif kind == "callbacks":
            with self._experiment.audience.guarded():
                self._experiment.audience.callbacks.set_states(record["states"])
        elif "n" in record:
            getattr(self, f"_take_{kind}")(self._experiment.trials[record["n"]], record)

    def _create(self, record: Record) -> None:
        experiment, plan = self._experiment, self._experiment.plan
        evaluated = evaluated_from_record(plan.space, record["evaluated"], plan.found)
        config = record["config"]
        if config is None:
            config = config_with(plan.space, evaluated, plan.found)
        if not self._searcher_knows:
            plan.searcher.remember(record["id"], config)
        each = experiment.new_trial(record["n"], config, evaluated, record["dir"])
        plan.scheduler.on_trial_add(experiment.controller, each.trial)

    def _take_row(self, each: TrialRun, record: Record) -> None:
        decision = record.get("decision")
        each.trial.status = "RUNNING"
        self._experiment.waiting.pop(each.trial, None)
        each.seen = record["i"]
        self._handovers.pop(each.number, None)
        row = {**record["row"], "trial_id": each.trial.trial_id, "training_iteration": record["i"], **record["row"]}
        shown = row if record["row"] else {}
        same = self._experiment.decisions.replay(each, shown, decision, to_searcher=not self._searcher_knows)
        each.trial.last_result = row
        if not same and not self._warned:
            self._warned = True
            self._experiment.audience.progress.warning(
                "The scheduler decides otherwise than before the interruption; what was decided then holds. Was it "
                "given other arguments?"
            )
        if decision == TrialScheduler.STOP:
            self._stopped.add(each.number)
        elif decision == TrialScheduler.PAUSE:
            each.trial.status = "PAUSED"
            self._experiment.waiting[each.trial] = each

    def _take_change(self, each: TrialRun, record: Record) -> None:
        donor = None if record["donor"] is None else self._experiment.trials[record["donor"]].trial
        each.change = Restart(record["config"], donor, record["resources"])

    def _take_run(self, each: TrialRun, record: Record) -> None:
        each.trial.status = "RUNNING"
        self._experiment.waiting.pop(each.trial, None)

    def _take_restart(self, each: TrialRun, record: Record) -> None:
        each.change = None
        if record["donor"] is not None:
            donor = self._experiment.trials[record["donor"]].trial
            self._handovers[each.number] = Restart(record["config"], donor)
        if record["config"] is not None:
            each.trial.config = record["config"]
            each.trial.evaluated_params = values_in(record["config"], each.trial)
        if record["resources"] is not None:
            each.set_resources(record["resources"])

    def _take_stop(self, each: TrialRun, record: Record) -> None:
        self._stopped.add(each.number)
        self._experiment.waiting.pop(each.trial, None)

    def _take_again(self, each: TrialRun, record: Record) -> None:
        """An earlier restore gave a failed trial another chance."""
        self._reopen(each, record["dir"])

    def _take_end(self, each: TrialRun, record: Record) -> None:
        experiment, trial = self._experiment, each.trial
        self._stopped.discard(each.number)
        self._ended[each.number] = record
        each.judged_by.update(record.get("judged_by", {}))
        experiment.waiting.pop(trial, None)
        failed = record["status"] == "failed"
        trial.status = "ERROR" if failed else "TERMINATED"
        metrics = {**record["metrics"], "config": trial.config} if record["metrics"] else {}
        trial.last_result = metrics or trial.last_result
        error = TrainingFailedError(record["error"]) if failed else None
        outcome = outcome_from_files(each, record["status"], metrics, error, self._filesystem)
        experiment.tell_end(each, outcome, to_searcher=not self._searcher_knows)

    # -- after the last record ------------------------------------------------------------

    def _settle(self, each: TrialRun) -> None:
        """What becomes of a trial now."""
        if each.number in self._ended:
            if self._ended[each.number]["status"] == "failed":
                self._maybe_again(each)
            return
        if self._experiment.place.uri is not None:
            fetch_trial(each.trial, each.directory, self._filesystem)
        status = _ending_of(each.directory)
        each.has_files = status is not None
        if each.has_files:  # others may want to go on from there
            each.trial.checkpoint = load_result(each.trial.path, self._filesystem).checkpoint
        if each.number in self._stopped or status in ("finished", "failed"):
            self._end_now(each, "failed" if status == "failed" else "finished")
        elif not self._rules.unfinished:
            self._end_now(each, "finished")
        elif each.trial.status == "RUNNING":
            each.trial.status = "PAUSED" if each.has_files else "PENDING"
            self._experiment.waiting[each.trial] = each
            handover = self._handovers.get(each.number)
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
        self._reopen(each, directory)
        each.has_files = not self._rules.restart_errored and _ending_of(each.directory) is not None

    def _reopen(self, each: TrialRun, directory: str) -> None:
        self._ended.pop(each.number, None)
        self._experiment.reopen(each, directory)

    def _end_now(self, each: TrialRun, status: Status) -> None:
        """Write down the end that the earlier driver did not come to write."""
        self._experiment.waiting.pop(each.trial, None)
        metrics = last_metrics(each)
        error = TrainingFailedError(_error_of(each.directory)) if status == "failed" else None
        each.trial.status = "ERROR" if error is not None else "TERMINATED"
        each.trial.last_result = metrics or each.trial.last_result
        self._experiment.trial_ended(each, outcome_from_files(each, status, metrics, error, self._filesystem))


def _ending_of(directory: Path) -> Status | None:
    """How the trial's own journal says that it ended; None if there is no run in it."""
    try:
        records = state_records(RunDir(directory))
    except (RestoreError, StorageError):
        return None
    return ending(records) or "unfinished"


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


def saved_facts(records: list[Record]) -> Mapping[str, Any]:
    """The experiment's description, with what later restores changed."""
    facts = dict(records[0])
    for record in records:
        if record["kind"] == "restore":
            facts.update({key: value for key, value in record.items() if key not in ("kind", "time")})
    return facts
