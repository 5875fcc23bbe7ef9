"""Takes an experiment up again: its records, read in order, lead searcher and scheduler to where they were.

Places are relative, so the directory may have been moved.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.errors import RestoreError, StorageError, TrainingFailedError
from paceline.air.secrets import filled
from paceline.storage.commit import is_put_aside
from paceline.storage.journal import read
from paceline.storage.run_dir import is_plain_name
from paceline.tune.experiment.deciding import values_in
from paceline.tune.experiment.outcomes import outcome_from_files
from paceline.tune.experiment.trial_run import TrialRun
from paceline.tune.schedulers.trial_scheduler import Restart, TrialScheduler
from paceline.tune.search.space import config_with, evaluated_from_record, from_description

if TYPE_CHECKING:
    from paceline.tune.experiment.experiment import Experiment

Record = dict[str, Any]


def read_records(journal: Path) -> list[Record]:
    """The records of an experiment; the first describes it."""
    try:
        records = list(read(journal))
    except FileNotFoundError:
        raise RestoreError(f"{journal.parent} holds no experiment: it has no {journal.name}.") from None
    if not records or records[0].get("kind") != "experiment":
        raise RestoreError(f"{journal} does not begin with an experiment's description; it cannot be continued.")
    _check_names(journal, records)
    for record in records:
        if record.get("config") is not None:
            record["config"] = from_description(record["config"])
    return records


def _check_names(journal: Path, records: list[Record]) -> None:
    """The files may come from anywhere: what names a file must name one in the experiment's directory."""
    trials = 0
    for record in records:
        kind, number = record.get("kind"), record.get("n", 0)
        if kind in ("experiment", "restore") and not re.fullmatch(r"\w{5,64}", str(record.get("id")), re.ASCII):
            raise RestoreError(f"{journal} names {record.get('id')!r} as the experiment's id, which cannot be one.")
        trials += kind == "trial"
        if type(number) is not int or not (number == trials - 1 if kind == "trial" else 0 <= number < max(1, trials)):
            raise RestoreError(f"{journal} is damaged: a record {kind!r} names {number!r} as the number of its trial.")
        if kind == "searcher" and type(record.get("saved")) is not int:
            raise RestoreError(
                f"{journal} names {record.get('saved')!r} as a searcher's state, which must be a number."
            )
        name = record.get("dir", "trial")
        if not is_plain_name(name):
            raise RestoreError(f"{journal} names {name!r} as a trial's directory, which is not one below it.")
        if (journal.parent / name).is_symlink():
            raise RestoreError(
                f"{journal.parent / name} is a symbolic link, so that a trial would write elsewhere. Replace it by the "
                "directory that it points to."
            )


def unrecorded_trials(journal: Path, records: list[Record]) -> list[str]:
    """What to tell the user if trials of this experiment are in no record: the journal was cut short."""
    known = {record["dir"] for record in records if "dir" in record}
    found = []
    for path in sorted(journal.parent.glob("*/journal.jsonl")):
        if path.parent.name not in known and not is_put_aside(path.parent):
            with contextlib.suppress(StorageError):
                header: Record = next(read(path), {})
                if header.get("experiment_id") == records[0]["id"]:
                    found.append(path.parent.name)
    if not found:
        return []
    shown = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    return [
        f"{journal} was cut short: it does not know {shown}, although these trials belong to the experiment. Their "
        "files stay as they are; Result.from_path reads them."
    ]


class Replay:
    """Brings an experiment that was just made to where its records end. What becomes of its trials then: settling.py"""

    def __init__(self, experiment: Experiment, records: list[Record]) -> None:
        self._experiment = experiment
        self._records = records
        self._filesystem = experiment.plan.run_config.storage_filesystem
        self.ended: dict[int, Record] = {}
        self.stopped: set[int] = set()
        """Trials of which a STOP was decided and no end is recorded."""
        self.handovers: dict[int, Restart] = {}
        """Trials that were to go on from another's state and have reported nothing since."""
        self._searcher_knows = False
        """The searcher will be given a state in which it knows these records."""
        self._warned = False

    def run(self) -> None:
        """Lead searcher and scheduler through the records; nothing is written."""
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

    def _take(self, record: Record) -> None:
        kind = record["kind"]
        if kind == "trial":
            self._create(record)
        elif kind == "stall":
            self._experiment.plan.scheduler.on_stall(self._experiment.controller)
        elif kind == "callbacks":
            with self._experiment.audience.guarded():
                self._experiment.audience.callbacks.set_states(record["states"])
        elif "n" in record and (take := getattr(self, f"_take_{kind}", None)) is not None:
            take(self._experiment.trials[record["n"]], record)

    def _create(self, record: Record) -> None:
        experiment, plan = self._experiment, self._experiment.plan
        evaluated = evaluated_from_record(plan.space, record["evaluated"], plan.found)
        config = filled(record["config"], plan.space)
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
        self.handovers.pop(each.number, None)
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
            self.stopped.add(each.number)
        elif decision == TrialScheduler.PAUSE:
            each.trial.status = "PAUSED"
            self._experiment.waiting[each.trial] = each

    def _take_change(self, each: TrialRun, record: Record) -> None:
        donor = None if record["donor"] is None else self._experiment.trials[record["donor"]].trial
        each.change = Restart(self._config_of(each, record), donor, record["resources"])

    def _take_run(self, each: TrialRun, record: Record) -> None:
        each.trial.status = "RUNNING"
        self._experiment.waiting.pop(each.trial, None)

    def _take_restart(self, each: TrialRun, record: Record) -> None:
        each.change = None
        config = self._config_of(each, record)
        if record["donor"] is not None:
            donor = self._experiment.trials[record["donor"]].trial
            self.handovers[each.number] = Restart(config, donor)
        if config is not None:
            each.trial.config = config
            each.trial.evaluated_params = values_in(config, each.trial)
        if record["resources"] is not None:
            each.set_resources(record["resources"])

    def _config_of(self, each: TrialRun, record: Record) -> dict[str, Any] | None:
        """The configuration that a trial was to go on with; None: the one it has."""
        plan = self._experiment.plan
        config: dict[str, Any] | None = filled(record["config"], plan.space)
        if config is not None or "evaluated" not in record:
            return config
        try:
            evaluated = evaluated_from_record(plan.space, record["evaluated"], plan.found)
            return config_with(plan.space, evaluated, plan.found)
        except RestoreError as error:
            self._experiment.audience.warn_once(
                f"{each.trial} keeps the parameters that it had before the scheduler changed them. {error}"
            )
            return None

    def _take_stop(self, each: TrialRun, record: Record) -> None:
        self.stopped.add(each.number)
        self._experiment.waiting.pop(each.trial, None)

    def _take_again(self, each: TrialRun, record: Record) -> None:
        """An earlier restore gave a failed trial another chance."""
        self.ended.pop(each.number, None)
        self._experiment.reopen(each, record["dir"])

    def _take_end(self, each: TrialRun, record: Record) -> None:
        experiment, trial = self._experiment, each.trial
        self.stopped.discard(each.number)
        self.ended[each.number] = record
        each.judged_by.update(record.get("judged_by", {}))
        experiment.waiting.pop(trial, None)
        failed = record["status"] == "failed"
        trial.status = "ERROR" if failed else "TERMINATED"
        metrics = {**record["metrics"], "config": trial.config} if record["metrics"] else {}
        trial.last_result = metrics or trial.last_result
        error = TrainingFailedError(record["error"]) if failed else None
        outcome = outcome_from_files(each, record["status"], metrics, error, self._filesystem)
        experiment.tell_end(each, outcome, to_searcher=not self._searcher_knows)


def saved_facts(records: list[Record]) -> Mapping[str, Any]:
    """The experiment's description, with what later restores changed."""
    facts = dict(records[0])
    for record in records:
        if record["kind"] == "restore":
            facts.update({key: value for key, value in record.items() if key not in ("kind", "time")})
    return facts
