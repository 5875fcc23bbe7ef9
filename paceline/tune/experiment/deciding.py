"""What becomes of a trial after a row: it goes on, stops, waits, or starts anew, changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.constants import AUTOFILLED_KEYS
from paceline.air.errors import ConfigError
from paceline.run.history import load_result
from paceline.run.interlude import Donor, Interlude
from paceline.run.nested import nested_get
from paceline.run.observers import Verdict
from paceline.run.run import Run
from paceline.run.trial import Trial
from paceline.tune.experiment.records import config_record
from paceline.tune.experiment.rows import RowRecorder
from paceline.tune.experiment.trial_run import TrialRun
from paceline.tune.schedulers.trial_scheduler import Decision, Restart, TrialScheduler

if TYPE_CHECKING:
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

    def after_row(self, each: TrialRun, index: int, row: dict[str, Any]) -> Verdict:
        if index <= each.seen:  # reported again after a retry
            return Verdict.STOP if self._rows.stops_again(each, index, row) else Verdict.GO_ON
        each.seen = index
        self._note_metric(each, row)
        decision = self._rows.take(each, index, row, self._ask_scheduler)
        if isinstance(decision, Restart):
            return self._restart(each, decision)
        if decision == TrialScheduler.STOP:
            return Verdict.STOP
        if decision == TrialScheduler.PAUSE:
            return self._pause(each, index)
        return Verdict.GO_ON

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

    def _pause(self, each: TrialRun, index: int) -> Verdict:
        """Give its resources to others. Its processes wait inside report(), where they are.

        Where too many would wait, or where they hold cards that others need, they end, if they can go on from this
        very row.
        """
        run = _run_of(each)
        can_end = run.newest_checkpoint_iteration == index
        crowded = self._experiment.runs_in_this_process or self._waiting_processes() >= MOST_WAITING
        shall_end = can_end and (crowded or each.trial.resources.get("GPU", 0) > 0)
        if self._experiment.runs_in_this_process and not can_end:
            raise ConfigError(
                f"{type(self._plan.scheduler).__name__} lets {each.trial} wait for others, but engine='inline' has "
                "room for one worker. Report a checkpoint with each row, so that the worker can end meanwhile, or use "
                "engine='local'."
            )
        each.trial.status = "PAUSED"
        self._experiment.give_back(each)
        self._experiment.waiting[each.trial] = each
        self._audience.trial_changed(each.trial)
        if shall_end:
            run.between_attempts(Interlude(waits=True))
            return Verdict.STOP
        return Verdict.WAIT

    def _waiting_processes(self) -> int:
        return sum(1 for each in self._experiment.waiting.values() if each.run is not None and each.run.group)

    def _restart(self, each: TrialRun, restart: Restart) -> Verdict:
        if restart.resources is not None:
            self._experiment.give_back(each)
            each.set_resources(restart.resources)
            each.grant = self._experiment.ledger.take(each.request)
        interlude = self._interlude(each, restart)
        if interlude is None:
            return Verdict.GO_ON
        _run_of(each).between_attempts(interlude)
        return Verdict.STOP

    def go_on_changed(self, each: TrialRun, run: Run, restart: Restart) -> None:
        """Let a trial that waits go on as the scheduler wants it."""
        interlude = self._interlude(each, restart)
        if interlude is None:
            run.resume()
        else:
            run.go_on_with(interlude)

    def _interlude(self, each: TrialRun, restart: Restart) -> Interlude | None:
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
        experiment.journal.event(
            "restart",
            each.number,
            **config_record(self._plan, trial.config),
            donor=None if restart.donor is None else experiment.by_trial[restart.donor].number,
            resources=restart.resources,
        )
        return Interlude(spec=experiment.launcher.spec(each), donor=donor)


def _run_of(each: TrialRun) -> Run:
    assert each.run is not None
    return each.run


def donor_of(each: TrialRun) -> Donor | None:
    """The trial's newest checkpoint, be it at work or not."""
    held = each.run.hold_newest_checkpoint() if each.run is not None else None
    if held is not None:
        checkpoint, row, release = held
        return Donor(str(each.trial), checkpoint, row, release)
    newest = None
    if each.outcome is not None:
        newest = each.outcome.result.checkpoint
    elif each.run is None and each.has_files:  # after a restore, when it has not had its turn
        newest = load_result(each.directory).checkpoint
    if newest is None or newest.path is None:
        return None
    return Donor(str(each.trial), newest, each.trial.last_result, _nothing_to_release)


def values_in(config: dict[str, Any], trial: Trial) -> dict[str, Any]:
    """What the search chose, with the values that the new configuration has for it."""
    return {name: nested_get(config, name, value) for name, value in trial.evaluated_params.items()}


def _nothing_to_release() -> None:
    """The trial is over: its checkpoints stay."""
