"""What becomes of a trial after a row: it continues, stops, waits, or starts anew, changed.

A row passes stopper, searcher and scheduler. As much of it is recorded as a restore needs to decide the same.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from paceline.air.constants import AUTOFILLED_KEYS, DONE
from paceline.air.errors import ConfigError
from paceline.air.metrics import nested_get
from paceline.run import decisions
from paceline.run.decisions import CONTINUE, Change, Decider, Donor, Stop, Wait
from paceline.run.history import load_result
from paceline.run.stoppers import DictStopper, MaximumIterationStopper, NoopStopper, TimeoutStopper
from paceline.tune.experiment.records import ChangePlanned, TrialChanged
from paceline.tune.experiment.trials import Shared, TrialRun
from paceline.tune.schedulers.trial_scheduler import Decision, Restart, TrialScheduler
from paceline.tune.search.space import chosen_in

if TYPE_CHECKING:
    from paceline.tune.experiment.starting import Launcher

_KNOWN = (TrialScheduler.CONTINUE, TrialScheduler.PAUSE, TrialScheduler.STOP, TrialScheduler.NOOP)
MOST_WAITING = 16
"""Trials whose processes wait inside report(); of further ones, those with a checkpoint of this very row end."""

_FORGETFUL = (DictStopper, MaximumIterationStopper, NoopStopper, TimeoutStopper)
"""Stoppers that look at one row at a time: they need not see the rows again."""

_RESTART = "RESTART"

Row = dict[str, Any]


class Decisions:
    """Leads each row through stopper, searcher and scheduler, and carries out what they decide."""

    def __init__(self, shared: Shared, launcher: Launcher) -> None:
        setup = shared.setup
        self._setup, self._trials, self._audience = setup, shared.trials, shared.audience
        self._journal, self._controller = shared.files.journal, shared.controller
        self._launcher = launcher
        self._searcher = setup.searcher
        self._stopper = stopper = shared.audience.stopper
        self._scheduler_decides = setup.scheduler.decides
        self._searcher_listens = setup.searcher.wants_results
        self._stopper_remembers = stopper is not None and not isinstance(stopper, _FORGETFUL)
        self.may_decide = stopper is not None or self._scheduler_decides
        """Whether a row can be the last, so that workers wait for the answer to each."""
        self._keeps = self._scheduler_decides or self._searcher_listens or self._stopper_remembers
        keys = setup.scheduler.result_keys if self._scheduler_decides else ()
        self._keys = None if self._searcher_listens or self._stopper_remembers else keys
        """What is kept of a row; None: all of it."""

    def after_row(self, trial_run: TrialRun, index: int, row: Row, has_checkpoint: bool) -> decisions.Decision:
        """What becomes of a trial at work; its run acts on it."""
        if index <= trial_run.seen:  # reported again after a retry
            return Stop() if self._stops_again(trial_run, index, row) else CONTINUE
        decision = self._take(trial_run, index, row)
        if isinstance(decision, Restart):
            return self._restart(trial_run, decision)
        if decision == TrialScheduler.STOP:
            return Stop()
        if decision == TrialScheduler.PAUSE:
            return self._wait(trial_run, has_checkpoint)
        return CONTINUE

    def guarded(self) -> AbstractContextManager[None]:
        """For a block that calls code of the user's own."""
        return self._audience.guarded()

    def after_earlier_row(self, trial_run: TrialRun, index: int, row: Row) -> Decision:
        """What shall become of a trial that does not run, by a row that an earlier driver did not come to decide on."""
        decision = self._take(trial_run, index, row)
        trial_run.trial.last_result = row
        return decision

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

    # -- the way of a row -----------------------------------------------------------------

    def _take(self, trial_run: TrialRun, index: int, row: Row) -> Decision:
        """What shall become of the trial after this row."""
        trial_run.seen = index
        self._note_metric(trial_run, row)
        decision = self._decision(trial_run, row)
        continues = decision in (TrialScheduler.CONTINUE, TrialScheduler.NOOP)
        if self._keeps or not continues:
            kept = self._part_of(row) if self._keeps else {}
            self._journal.row(trial_run.number, index, kept, None if continues else _name(decision))
        return decision

    def _note_metric(self, trial_run: TrialRun, row: Row) -> None:
        """Remember what the trial is judged by: its last row need not say it again."""
        for metric in self._setup.metrics:
            value = nested_get(row, metric)
            if isinstance(value, str):
                self._audience.warn_once(f"metric {metric!r} is reported as text, {value!r}: report a number.")
            if value is not None:
                trial_run.judged_by[metric] = value
            elif metric not in trial_run.judged_by and metric not in row:
                own = ", ".join(sorted(set(row) - AUTOFILLED_KEYS)) or "nothing"
                self._audience.warn_once(
                    f"metric={metric!r} of TuneConfig was not reported (there is: {own}). Such rows cannot be compared."
                )

    def _decision(self, trial_run: TrialRun, row: Row) -> Decision:
        stops = self._stopper is not None and self._stopper(trial_run.trial.trial_id, row)
        if self._searcher_listens:
            self._searcher.on_trial_result(trial_run.trial.trial_id, row)
        # The scheduler sees every row, the last one too: others are compared with it.
        decision = self._ask_scheduler(trial_run, row) if self._scheduler_decides else TrialScheduler.CONTINUE
        return TrialScheduler.STOP if stops or self._says_done(row) else decision

    def _ask_scheduler(self, trial_run: TrialRun, row: Row) -> Decision:
        decision = self._setup.scheduler.on_trial_result(self._controller, trial_run.trial, row)
        if not isinstance(decision, Restart) and decision not in _KNOWN:
            raise ConfigError(
                f"{type(self._setup.scheduler).__name__}.on_trial_result() returned {decision!r}: return one of "
                f"TrialScheduler's {', '.join(_KNOWN)}, or a Restart."
            )
        return decision

    def _says_done(self, row: Row) -> bool:
        """Whether the trial says itself that there is nothing more to do."""
        return row.get(DONE) is True and (self.may_decide or self._setup.kind.stops_when_done)

    def _part_of(self, row: Row) -> Row:
        if self._keys is None:
            return {key: value for key, value in row.items() if key != "config"}
        return {key: value for key in self._keys if (value := nested_get(row, key)) is not None}

    def _stops_again(self, trial_run: TrialRun, index: int, row: Row) -> bool:
        """Whether a row that a retry reports again ends the trial. Only stoppers that look at one row at a time are
        asked: others have counted it already."""
        stopper = None if self._stopper_remembers else self._stopper
        stops = stopper is not None and stopper(trial_run.trial.trial_id, row)
        if not stops and not self._says_done(row):
            return False
        self._journal.row(trial_run.number, index, {}, TrialScheduler.STOP)
        return True

    # -- what follows ---------------------------------------------------------------------

    def _wait(self, trial_run: TrialRun, can_end: bool) -> Wait:
        """Its processes wait inside report(), where they are.

        Where too many would wait, or where they hold cards that others need, they end, if they can continue from this
        very row.
        """
        bound = self._launcher.runs_in_this_process or self._launcher.reserves_room
        crowded = bound or self._trials.waiting_processes >= MOST_WAITING
        shall_end = can_end and (crowded or trial_run.trial.resources.get("GPU", 0) > 0)
        if self._launcher.runs_in_this_process and not can_end:
            raise ConfigError(
                f"{type(self._setup.scheduler).__name__} lets {trial_run.trial} wait for others, but engine='inline' "
                "has room for one worker. Report a checkpoint with each row, so that the worker can end meanwhile, or "
                "use engine='local'."
            )
        return Wait(keeps_workers=not shall_end)

    def pause(self, trial_run: TrialRun) -> None:
        """A trial's run waits: its resources are for others."""
        trial_run.trial.status = "PAUSED"
        self._trials.give_back(trial_run)
        self._trials.wait(trial_run)
        self._audience.trial_changed(trial_run.trial)

    def _restart(self, trial_run: TrialRun, restart: Restart) -> decisions.Decision:
        if restart.resources is not None:
            self._trials.give_back(trial_run)
            trial_run.set_resources(restart.resources)
            self._trials.take_resources(trial_run)
        return self.restarted(trial_run, restart)

    def restarted(self, trial_run: TrialRun, restart: Restart) -> decisions.Decision:
        """How the trial's run continues as the scheduler wants it; as it is if the donor has nothing to give."""
        trial, donor = trial_run.trial, None
        if restart.donor is not None:
            donor, trial_run.donor = trial_run.donor or donor_of(self._trials.of(restart.donor)), None
            if donor is None:
                self._audience.warn_once(
                    f"{restart.donor} was to hand its state to {trial}, but has no checkpoint on disk. Report "
                    "checkpoints with report(metrics, checkpoint=...), and let CheckpointConfig(num_to_keep=...) keep "
                    "at least one; without them nothing can be handed over."
                )
                return CONTINUE
        if restart.config is not None:
            trial.config = restart.config
            trial.evaluated_params = chosen_in(restart.config, trial.evaluated_params)
        self._journal.append(
            TrialChanged(
                n=trial_run.number,
                **self._setup.config_record(trial.config),
                donor=None if restart.donor is None else self._trials.of(restart.donor).number,
                resources=restart.resources,
            )
        )
        return decisions.Restart(Change(spec=self._launcher.spec(trial_run), donor=donor))


class TrialDecider(Decider):
    """What scheduler, stopper and searcher of a search say about one of its trials."""

    def __init__(self, deciding: Decisions, trial_run: TrialRun) -> None:
        self._deciding = deciding
        self._trial_run = trial_run

    @property
    def may_decide(self) -> bool:
        return self._deciding.may_decide

    def after_row(self, index: int, row: Row, has_checkpoint: bool) -> decisions.Decision:
        with self._deciding.guarded():
            return self._deciding.after_row(self._trial_run, index, row, has_checkpoint)


def donor_of(trial_run: TrialRun) -> Donor | None:
    """The trial's newest checkpoint, be it at work or not."""
    if trial_run.run is not None and (donor := trial_run.run.donate()) is not None:
        return donor
    newest = None
    if trial_run.outcome is not None:
        newest = trial_run.outcome.result.checkpoint
    elif trial_run.run is None and trial_run.has_files:  # after a restore, when it has not had its turn
        newest = load_result(trial_run.directory).checkpoint
    if newest is None or newest.path is None:
        return None
    return Donor(str(trial_run.trial), newest, trial_run.trial.last_result, _nothing_to_release)


def change_waiting(shared: Shared, trial_run: TrialRun, restart: Restart) -> None:
    """Have a PAUSED trial continue changed when it is chosen to run."""
    trial_run.forget_change()
    trial_run.change = restart
    donor = None if restart.donor is None else shared.trials.of(restart.donor)
    if donor is not None:
        trial_run.donor = donor_of(donor)
    shared.files.journal.append(
        ChangePlanned(
            n=trial_run.number,
            **shared.setup.config_record(restart.config),
            donor=None if donor is None else donor.number,
            resources=restart.resources,
        )
    )


def _nothing_to_release() -> None:
    """The trial is over: its checkpoints stay."""


def _name(decision: Decision) -> str:
    return _RESTART if isinstance(decision, Restart) else decision
