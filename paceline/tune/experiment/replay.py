"""Takes an experiment up again: its records, read in order, lead searcher and scheduler to where they were.

Places are relative, so the directory may have been moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UnsetType

from paceline.air.errors import RestoreError
from paceline.air.secrets import filled
from paceline.tune.experiment.records import (
    CallbackStates,
    ChangePlanned,
    Record,
    RowSeen,
    SearcherSaved,
    SearchRecords,
    Stalled,
    TrialAgain,
    TrialChanged,
    TrialCreated,
    TrialEnded,
    TrialResumed,
    TrialStopped,
)
from paceline.tune.experiment.trials import TrialRun
from paceline.tune.schedulers.trial_scheduler import Restart, TrialScheduler
from paceline.tune.search.space import chosen_in, config_with, evaluated_from_record
from paceline.tune.trial_outcome import outcome_of_record

if TYPE_CHECKING:
    from paceline.tune.experiment.experiment import Experiment


class Replay:
    """Brings an experiment that was just made to where its records end. What becomes of its trials then: settling.py"""

    def __init__(self, experiment: Experiment, records: SearchRecords) -> None:
        shared = experiment.shared
        self._setup, self._trials, self._audience = shared.setup, shared.trials, shared.audience
        self._controller = shared.controller
        self._launcher = experiment.launcher
        self._decisions = experiment.decisions
        self._endings = experiment.endings
        self._records = records.all
        self.ended: dict[int, TrialEnded] = {}
        self.stopped: set[int] = set()
        """Trials of which a STOP was decided and no end is recorded."""
        self.handovers: dict[int, Restart] = {}
        """Trials that were to continue from another's state and have reported nothing since."""
        self._searcher_knows = False
        """The searcher will be given a state in which it knows these records."""
        self._warned = False

    def run(self) -> None:
        """Lead searcher and scheduler through the records; nothing is written."""
        self._controller.replaying = True
        known_until = self._endings.memory.newest_save(self._records)
        self._searcher_knows = known_until is not None
        try:
            for position, record in enumerate(self._records):
                self._take(record)
                if position == known_until and isinstance(record, SearcherSaved):
                    self._endings.memory.restore_searcher(record.saved)
                    self._searcher_knows = False
        finally:
            self._controller.replaying = False

    def _take(self, record: Record) -> None:
        match record:
            case TrialCreated():
                self._create(record)
            case RowSeen():
                self._row(self._trials[record.n], record)
            case TrialResumed():
                self._trials[record.n].trial.status = "RUNNING"
                self._trials.no_longer_waits(self._trials[record.n])
            case TrialStopped():
                self.stopped.add(record.n)
                self._trials.no_longer_waits(self._trials[record.n])
            case ChangePlanned():
                trial_run = self._trials[record.n]
                donor = None if record.donor is None else self._trials[record.donor].trial
                trial_run.change = Restart(self._config_of(trial_run, record), donor, record.resources)
            case TrialChanged():
                self._changed(self._trials[record.n], record)
            case TrialAgain():  # an earlier restore gave a failed trial another chance
                self.ended.pop(record.n, None)
                self._endings.reopen(self._trials[record.n], record.dir)
            case TrialEnded():
                self._ended(self._trials[record.n], record)
            case Stalled():
                self._setup.scheduler.on_stall(self._controller)
            case CallbackStates():
                with self._audience.guarded():
                    self._audience.callbacks.set_states(record.states)

    def _create(self, record: TrialCreated) -> None:
        setup = self._setup
        evaluated = evaluated_from_record(setup.found, record.evaluated)
        config = filled(record.config, setup.space)
        if config is None:
            config = config_with(setup.found, evaluated)
        if not self._searcher_knows:
            setup.searcher.remember(record.id, config)
        trial_run = self._launcher.new_trial(record.n, config, evaluated, record.dir)
        setup.scheduler.on_trial_add(self._controller, trial_run.trial)

    def _row(self, trial_run: TrialRun, record: RowSeen) -> None:
        decision, trial = record.decision, trial_run.trial
        trial.status = "RUNNING"
        self._trials.no_longer_waits(trial_run)
        trial_run.seen = record.i
        self.handovers.pop(trial_run.number, None)
        row = {**record.row, "trial_id": trial.trial_id, "training_iteration": record.i, **record.row}
        shown = row if record.row else {}
        same = self._decisions.replay(trial_run, shown, decision, to_searcher=not self._searcher_knows)
        trial.last_result = row
        if not same and not self._warned:
            self._warned = True
            self._audience.warn(
                "The scheduler decides otherwise than before the interruption; what was decided then holds. Was it "
                "given other arguments?"
            )
        if decision == TrialScheduler.STOP:
            self.stopped.add(trial_run.number)
        elif decision == TrialScheduler.PAUSE:
            trial.status = "PAUSED"
            self._trials.wait(trial_run)

    def _changed(self, trial_run: TrialRun, record: TrialChanged) -> None:
        trial_run.change = None
        config = self._config_of(trial_run, record)
        if record.donor is not None:
            self.handovers[trial_run.number] = Restart(config, self._trials[record.donor].trial)
        if config is not None:
            trial_run.trial.config = config
            trial_run.trial.evaluated_params = chosen_in(config, trial_run.trial.evaluated_params)
        if record.resources is not None:
            trial_run.set_resources(record.resources)

    def _config_of(self, trial_run: TrialRun, record: ChangePlanned | TrialChanged) -> dict[str, Any] | None:
        """The configuration that a trial was to continue with; None: the one it has."""
        setup = self._setup
        config: dict[str, Any] | None = filled(record.config, setup.space)
        if config is not None or isinstance(record.evaluated, UnsetType):
            return config
        try:
            evaluated = evaluated_from_record(setup.found, record.evaluated)
            return config_with(setup.found, evaluated)
        except RestoreError as error:
            self._audience.warn_once(
                f"{trial_run.trial} keeps the parameters that it had before the scheduler changed them. {error}"
            )
            return None

    def _ended(self, trial_run: TrialRun, record: TrialEnded) -> None:
        self.stopped.discard(trial_run.number)
        self.ended[trial_run.number] = record
        if not isinstance(record.judged_by, UnsetType):
            trial_run.judged_by.update(record.judged_by)
        self._trials.no_longer_waits(trial_run)
        outcome = outcome_of_record(trial_run.trial, record, self._setup.run_config.storage_filesystem)
        self._endings.report_end(trial_run, outcome, to_searcher=not self._searcher_knows)
