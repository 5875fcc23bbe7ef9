"""What becomes of a trial after a row: it goes on, stops, waits, or starts anew, changed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from paceline.air.constants import AUTOFILLED_KEYS
from paceline.air.errors import ConfigError
from paceline.run import decisions
from paceline.run.decisions import CONTINUE, Change, Decider, Donor, Stop, Wait
from paceline.run.history import load_result
from paceline.run.nested import nested_get
from paceline.run.trial import Trial
from paceline.tune.experiment.records import ChangePlanned, ExperimentJournal, TrialChanged, config_record
from paceline.tune.experiment.rows import RowRecorder
from paceline.tune.experiment.setup import SearchSetup
from paceline.tune.experiment.trials import TrialRun, Trials
from paceline.tune.schedulers.trial_scheduler import Decision, Restart, TrialScheduler

if TYPE_CHECKING:
    from paceline.tune.experiment.audience import Audience
    from paceline.tune.experiment.experiment import Experiment


_KNOWN = (TrialScheduler.CONTINUE, TrialScheduler.PAUSE, TrialScheduler.STOP, TrialScheduler.NOOP)
MOST_WAITING = 16
"""Trials whose processes wait inside report(); of further ones, those with a checkpoint of this very row end."""


class Decisions:
    """Carries out what scheduler and stopper decide."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._plan = experiment.plan
        self._audience = experiment.audience
        self._rows = RowRecorder(experiment.plan, experiment.audience.stopper, experiment.journal)

    @property
    def may_decide(self) -> bool:
        """Whether a row can be the last, so that workers wait for the answer to each."""
        return self._rows.may_decide

    def after_row(self, each: TrialRun, index: int, row: dict[str, Any], has_checkpoint: bool) -> decisions.Decision:
        """What becomes of a trial at work; its run acts on it."""
        if index <= each.seen:  # reported again after a retry
            return Stop() if self._rows.stops_again(each, index, row) else CONTINUE
        each.seen = index
        self._note_metric(each, row)
        decision = self._rows.take(each, index, row, self._ask_scheduler)
        if isinstance(decision, Restart):
            return self._restart(each, decision)
        if decision == TrialScheduler.STOP:
            return Stop()
        if decision == TrialScheduler.PAUSE:
            return self._wait(each, has_checkpoint)
        return CONTINUE

    def guarded(self) -> AbstractContextManager[None]:
        """For a block that calls code of the user's own."""
        audience: Audience = self._audience
        return audience.guarded()

    def after_earlier_row(self, each: TrialRun, index: int, row: dict[str, Any]) -> Decision:
        """What shall become of a trial that does not run, by a row that an earlier driver did not come to decide on."""
        each.seen = index
        self._note_metric(each, row)
        decision = self._rows.take(each, index, row, self._ask_scheduler)
        each.trial.last_result = row
        return decision

    def replay(self, each: TrialRun, row: dict[str, Any], decision: str | None, *, to_searcher: bool) -> bool:
        """Show a recorded row again; False if the scheduler decides otherwise now."""
        return self._rows.replay(each, row, decision, self._ask_scheduler, to_searcher=to_searcher)

    def _ask_scheduler(self, each: TrialRun, row: dict[str, Any]) -> Decision:
        decision = self._plan.scheduler.on_trial_result(self._experiment.controller, each.trial, row)
        if not isinstance(decision, Restart) and decision not in _KNOWN:
            raise ConfigError(
                f"{type(self._plan.scheduler).__name__}.on_trial_result() returned {decision!r}: return one of "
                f"TrialScheduler's {', '.join(_KNOWN)}, or a Restart."
            )
        return decision

    def _note_metric(self, each: TrialRun, row: dict[str, Any]) -> None:
        """Remember what the trial is judged by: its last row need not say it again."""
        for metric in self._plan.metrics:
            value = nested_get(row, metric)
            if isinstance(value, str):
                self._audience.warn_once(f"metric {metric!r} is reported as text, {value!r}: report a number.")
            if value is not None:
                each.judged_by[metric] = value
            elif metric not in each.judged_by:
                self._warn_of_missing_metric(metric, row)

    def _warn_of_missing_metric(self, metric: str, row: dict[str, Any]) -> None:
        if metric not in row:
            own = ", ".join(sorted(set(row) - AUTOFILLED_KEYS)) or "nothing"
            self._audience.warn_once(
                f"metric={metric!r} of TuneConfig was not reported (there is: {own}). Such rows cannot be compared."
            )

    def _wait(self, each: TrialRun, can_end: bool) -> Wait:
        """Its processes wait inside report(), where they are.

        Where too many would wait, or where they hold cards that others need, they end, if they can continue from this
        very row.
        """
        crowded = self._experiment.runs_in_this_process or self._waiting_processes() >= MOST_WAITING
        shall_end = can_end and (crowded or each.trial.resources.get("GPU", 0) > 0)
        if self._experiment.runs_in_this_process and not can_end:
            raise ConfigError(
                f"{type(self._plan.scheduler).__name__} lets {each.trial} wait for others, but engine='inline' has "
                "room for one worker. Report a checkpoint with each row, so that the worker can end meanwhile, or use "
                "engine='local'."
            )
        return Wait(keeps_workers=not shall_end)

    def pause(self, each: TrialRun) -> None:
        """A trial's run waits: its resources are for others."""
        each.trial.status = "PAUSED"
        self._experiment.give_back(each)
        self._experiment.waiting[each.trial] = each
        self._audience.trial_changed(each.trial)

    def _waiting_processes(self) -> int:
        return sum(1 for each in self._experiment.waiting.values() if each.run is not None and each.run.group)

    def _restart(self, each: TrialRun, restart: Restart) -> decisions.Decision:
        if restart.resources is not None:
            self._experiment.give_back(each)
            each.set_resources(restart.resources)
            each.grant = self._experiment.ledger.take(each.request)
        return self.restarted(each, restart)

    def restarted(self, each: TrialRun, restart: Restart) -> decisions.Decision:
        """How the trial's run continues as the scheduler wants it; as it is if the donor has nothing to give."""
        change = self._change(each, restart)
        return CONTINUE if change is None else decisions.Restart(change)

    def _change(self, each: TrialRun, restart: Restart) -> Change | None:
        """How the trial goes on; None if the donor has nothing to give."""
        experiment, trial, donor = self._experiment, each.trial, None
        if restart.donor is not None:
            donor, each.donor = each.donor or donor_of(experiment.by_trial[restart.donor]), None
            if donor is None:
                self._audience.warn_once(
                    f"{restart.donor} was to hand its state to {trial}, but has no checkpoint on disk. Report "
                    "checkpoints with report(metrics, checkpoint=...), and let CheckpointConfig(num_to_keep=...) keep "
                    "at least one; without them nothing can be handed over."
                )
                return None
        if restart.config is not None:
            trial.config = restart.config
            trial.evaluated_params = values_in(restart.config, trial)
        experiment.journal.append(
            TrialChanged(
                n=each.number,
                **config_record(self._plan, trial.config),
                donor=None if restart.donor is None else experiment.by_trial[restart.donor].number,
                resources=restart.resources,
            )
        )
        return Change(spec=experiment.launcher.spec(each), donor=donor)


class TrialDecider(Decider):
    """What scheduler, stopper and searcher of a search say about one of its trials."""

    def __init__(self, deciding: Decisions, trial_run: TrialRun) -> None:
        self._deciding = deciding
        self._trial_run = trial_run

    @property
    def may_decide(self) -> bool:
        return self._deciding.may_decide

    def after_row(self, index: int, row: dict[str, Any], has_checkpoint: bool) -> decisions.Decision:
        with self._deciding.guarded():
            return self._deciding.after_row(self._trial_run, index, row, has_checkpoint)


def donor_of(each: TrialRun) -> Donor | None:
    """The trial's newest checkpoint, be it at work or not."""
    if each.run is not None and (donor := each.run.donate()) is not None:
        return donor
    newest = None
    if each.outcome is not None:
        newest = each.outcome.result.checkpoint
    elif each.run is None and each.has_files:  # after a restore, when it has not had its turn
        newest = load_result(each.directory).checkpoint
    if newest is None or newest.path is None:
        return None
    return Donor(str(each.trial), newest, each.trial.last_result, _nothing_to_release)


def change_waiting(
    setup: SearchSetup, trials: Trials, journal: ExperimentJournal, trial_run: TrialRun, restart: Restart
) -> None:
    """Have a PAUSED trial continue changed when it is chosen to run."""
    trial_run.forget_change()
    trial_run.change = restart
    if restart.donor is not None:
        trial_run.donor = donor_of(trials.of(restart.donor))
    journal.append(
        ChangePlanned(
            n=trial_run.number,
            **config_record(setup, restart.config),
            donor=None if restart.donor is None else trials.of(restart.donor).number,
            resources=restart.resources,
        )
    )


def values_in(config: dict[str, Any], trial: Trial) -> dict[str, Any]:
    """What the search chose, with the values that the new configuration has for it."""
    return {name: nested_get(config, name, value) for name, value in trial.evaluated_params.items()}


def _nothing_to_release() -> None:
    """The trial is over: its checkpoints stay."""
