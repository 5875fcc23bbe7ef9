"""An Experiment: asks for configurations, runs each as a trial, and lets scheduler and searcher decide.

Reading order: `step` (start what may start, listen, act on what was heard), then starting.py,
deciding.py (what becomes of a trial after a row) and `trial_ended`. Everything that was decided
is appended to the journal, in the order in which it happened: see records.py.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import Future
from typing import Any

from paceline.air.errors import ConfigError, DataError, SerializationError
from paceline.air.result import Result, Status
from paceline.engine.base import Engine
from paceline.engine.devices import usable_gpus
from paceline.run.run import BREAK_OFF_WAIT_S, STORE_WAIT_S, Phase, Run
from paceline.run.trial import Trial
from paceline.run.trial_files import announce
from paceline.storage.lock import RunLock
from paceline.tune.experiment.audience import Audience
from paceline.tune.experiment.controller import ExperimentController
from paceline.tune.experiment.deciding import Decisions, donor_of
from paceline.tune.experiment.launching import Launcher
from paceline.tune.experiment.ledger import Ledger
from paceline.tune.experiment.memory import Memory
from paceline.tune.experiment.outcomes import (
    last_metrics,
    original_error,
    outcome_from_files,
    outcome_of_result,
    outcome_so_far,
    outcome_without_run,
)
from paceline.tune.experiment.place import ExperimentPlace, directory_name
from paceline.tune.experiment.plan import Plan
from paceline.tune.experiment.records import ExperimentJournal, config_record
from paceline.tune.experiment.remote import RemoteJournal
from paceline.tune.experiment.starting import Starter
from paceline.tune.experiment.stopping import Stopping
from paceline.tune.experiment.trial_run import TrialRun
from paceline.tune.progress.base import ExperimentSummary, ExperimentView
from paceline.tune.result_grid import ResultGrid
from paceline.tune.schedulers.trial_scheduler import Restart
from paceline.tune.search.searcher import tell_complete
from paceline.tune.search.space import tag
from paceline.tune.trial_outcome import TrialOutcome

WAIT_S = 0.1
"""How long a step waits for news; reports, deaths and finished work end the wait at once."""
STEP_EVERY_S = 0.2
"""How often a run is stepped even though nothing happens, so that it can look at its clocks."""
LEAST_STORE_WAIT_S = 1.0
"""For each trial, once a remote store has used up the time that all of them share after an interrupt."""


class Experiment:
    """The state machine of one experiment. Use it from one thread."""

    def __init__(self, plan: Plan, engine: Engine, place: ExperimentPlace) -> None:
        self.plan = plan
        self.place = place
        self.engine = engine
        self.stopped_by_signal: int | None = None
        self.result: ResultGrid | None = None
        self.trials: list[TrialRun] = []
        self.by_trial: dict[Trial, TrialRun] = {}
        self.waiting: dict[Trial, TrialRun] = {}
        """Those that are PENDING or PAUSED, in the order in which they became so."""
        self.created_all = False
        """The searcher has nothing more to suggest."""
        resources = engine.resources()
        self.ledger = Ledger(resources, usable_gpus(resources.get("GPU", 0.0)))
        self.view = ExperimentView(
            name=place.name,
            experiment_path=place.shown,
            trials=[],
            metric=plan.metric,
            mode=plan.mode,
            total=plan.total,
            used=self.ledger.used,
            resources=self.ledger.total,
            scheduler_info=plan.scheduler.debug_string,
        )
        self.audience = Audience(plan.run_config, self.view)
        self.controller = ExperimentController(self)
        self.launcher = Launcher(plan, engine, place, self.audience)
        self._lock = RunLock(place.lock)
        self._lock.acquire()
        self._remote: RemoteJournal | None = None
        try:
            if place.uri is not None:
                told = announce if plan.run_config.verbose else None
                self._remote = RemoteJournal(place, plan.run_config.storage_filesystem, told)
            self.journal = ExperimentJournal(place.journal, self.launcher.shared_sync)
        except BaseException:
            if self._remote is not None:
                self._remote.release()
            self._lock.release()
            raise
        self.decisions = Decisions(self)
        self._starter = Starter(self)
        self.stop = Stopping(self)
        self.memory = Memory(place, plan.searcher, self.audience, self.journal)
        self.active: dict[TrialRun, None] = {}
        """Those with processes, or that will have some in a moment."""
        self._fatal: Exception | None = None
        self._started = False
        self._closed = False
        self._broken_off = False

    # -- the loop's view ------------------------------------------------------------------

    @property
    def starting(self) -> bool:
        """A signal asks for a graceful stop at any time: trials come and go."""
        return False

    @property
    def done(self) -> bool:
        return self.result is not None

    def request_stop(self, signal_number: int) -> None:
        """Ask for a graceful stop of every trial. Safe in a signal handler."""
        self.stopped_by_signal = signal_number

    def step(self, timeout: float = WAIT_S) -> None:
        """Advance: start trials, hear what workers said, act on it."""
        self._announce()
        self.stop.look_for_reasons()
        self._starter.start_more()
        self._listen(timeout)
        if self._remote is not None:
            self._remote.lease.raise_if_lost()
        self.journal.flush()
        self.audience.progress.tick()
        if not self.active and not self._may_go_on():
            self._finish()

    def _announce(self) -> None:
        if self._started:
            return
        self._started = True
        if self.plan.tune.budget_s is not None:
            self.stop.deadline = time.monotonic() + self.plan.tune.budget_s
        self.audience.started(self.plan.tune.num_samples, self.plan.total)
        if self.plan.metric is not None and self.plan.mode is None:
            self.audience.progress.note(f"Is {self.plan.metric!r} to be small or large? TuneConfig(mode=...) says it.")

    def _listen(self, timeout: float) -> None:
        """Wait for news of any trial and let those that have some take a step."""
        now = time.monotonic()
        groups = {group: each for each in self.active if each.run and (group := each.run.group) is not None}
        soonest = min([each.due for each in self.active] + [self.stop.deadline])
        ready = self.engine.wait(list(groups), max(0.0, min(timeout, soonest - now)))
        heard = {id(groups[group]) for group in ready}
        now = time.monotonic()
        for each in list(self.active):
            run = each.run
            if id(each) in heard or now >= each.due or run is None or run.phase in (Phase.LAUNCHING, Phase.ENDING):
                self._step_trial(each)

    def _step_trial(self, each: TrialRun) -> None:
        try:
            if each.building is not None:
                self._take_built_run(each)
            run = each.run
            if run is None:
                each.due = time.monotonic() + STEP_EVERY_S
                return
            run.step(0.0)
            each.due = min(run.wakes_at, time.monotonic() + STEP_EVERY_S)
        except Exception as error:
            if self.audience.user_error is not None:
                raise self.audience.user_error from self.audience.user_error.__cause__
            if self.concerns_all_trials(error):
                raise
            self.break_off_trial(each, error)
            return
        if run.done:
            assert run.result is not None
            self._run_ended(each, run.result)
        elif run.is_over and self.plan.may_overlap and not each.trial.resources.get("GPU"):
            self.give_back(each)  # processes that only have to end need no CPU; the memory of a card they do hold
        elif run.phase is Phase.SUSPENDED:
            self.active.pop(each, None)

    def _take_built_run(self, each: TrialRun) -> None:
        assert each.building is not None
        if each.building.done():
            built, each.building = each.building, None
            each.run = built.result()
            self._starter.carry_out_change(each)
            if self.stop.stopping:
                each.run.stop_gracefully(interrupted=self.stop.interrupted, within_s=self.stop.time_to_stop_s)

    # -- trials ---------------------------------------------------------------------------

    @property
    def runs_in_this_process(self) -> bool:
        """Then there is room for one worker, which nobody can wait beside."""
        return self.engine.name == "inline"

    def new_trial(
        self, number: int, config: dict[str, Any], evaluated: dict[str, Any], directory: str | None = None
    ) -> TrialRun:
        """A trial that is PENDING, in all the lists."""
        trial = Trial(
            trial_id=self.place.trial_id(number),
            trainable_name=self.plan.kind.name,
            local_path="",
            experiment_id=self.place.experiment_id,
            experiment_name=self.place.name,
            experiment_tag=tag(number, evaluated),
            config=config,
            evaluated_params=evaluated,
        )
        with self.audience.guarded():
            if self.plan.tune.trial_name_creator is not None:
                trial.custom_name = str(self.plan.tune.trial_name_creator(trial))
            name = directory or directory_name(trial, self.plan.tune.trial_dirname_creator)
        if directory is None:  # a power cut may have left the trial's files and not the record of its creation
            name = self.place.free_name(name)
        trial.local_path = str(self.place.root / name)
        trial.path = f"{self.place.uri}/{name}" if self.place.uri else trial.local_path
        request = self.launcher.request(config)
        self.ledger.check(request)
        trial.resources = dict(request.amounts)
        each = TrialRun(number, trial, self.place.root / name, request)
        self.trials.append(each)
        self.view.trials.append(trial)
        self.by_trial[trial] = each
        self.waiting[trial] = each
        self.audience.trial_changed(trial)
        return each

    def concerns_all_trials(self, error: Exception) -> bool:
        """Whether it is the trainable or its data that is wrong, not this one configuration."""
        if not isinstance(error, ConfigError | SerializationError | DataError):
            return False
        return not any(other.has_files or other.outcome for other in self.trials)

    # -- what the scheduler does to trials that wait --------------------------------------

    def stop_waiting(self, each: TrialRun) -> None:
        """End a trial that is PENDING or PAUSED."""
        self.waiting.pop(each.trial, None)
        self.journal.event("stop", each.number)
        each.forget_change()
        if each.run is None:
            self._end_without_run(each)
            return
        each.run.end_waiting()
        self.active[each] = None
        each.due = 0.0

    def _end_without_run(self, each: TrialRun) -> None:
        each.trial.status = "TERMINATED"
        if each.has_files:
            self.trial_ended(each, outcome_from_files(each, "finished", last_metrics(each)))
        else:
            self.trial_ended(each, outcome_without_run(each, "finished"))

    def change_waiting(self, each: TrialRun, restart: Restart) -> None:
        """Have a PAUSED trial go on changed when it is chosen to run."""
        each.forget_change()
        each.change = restart
        if restart.donor is not None:
            each.donor = donor_of(self.by_trial[restart.donor])
        self.journal.event(
            "change",
            each.number,
            **config_record(self.plan, restart.config),
            donor=None if restart.donor is None else self.by_trial[restart.donor].number,
            resources=restart.resources,
        )

    # -- what a replay asks for -----------------------------------------------------------

    def reopen(self, each: TrialRun, directory: str) -> None:
        """Give a trial that had failed another chance: for the scheduler, which saw it leave, it is a new one."""
        if directory != each.directory.name:  # from its beginning: every row counts again
            each.seen, each.trial.last_result = 0, {}
        each.directory = self.place.root / directory
        each.trial.local_path = str(each.directory)
        each.trial.path = f"{self.place.uri}/{directory}" if self.place.uri else each.trial.local_path
        each.outcome, each.was_told, each.trial.status = None, True, "PENDING"
        self.waiting[each.trial] = each
        self.plan.scheduler.on_trial_add(self.controller, each.trial)
        self.audience.trial_changed(each.trial)

    # -- endings --------------------------------------------------------------------------

    def _run_ended(self, each: TrialRun, result: Result) -> None:
        self.plan.kind.made_here(result)
        each.run = None
        self.active.pop(each, None)
        self.give_back(each)
        if result.status == "interrupted":
            each.trial.status = "PAUSED" if each.trial.last_result else "PENDING"
            each.outcome = outcome_of_result(each, result)
            self.audience.trial_changed(each.trial)
            return
        self.trial_ended(each, outcome_of_result(each, result))

    def break_off_trial(self, each: TrialRun, error: Exception) -> None:
        """Something that belongs to this trial alone went wrong in the driver."""
        run = each.run
        each.building = None
        if run is not None:
            run.break_off("failed", error)
            if run.result is not None:
                self._run_ended(each, run.result)
                return
        each.run = None
        self.active.pop(each, None)
        self.give_back(each)
        each.trial.status = "ERROR"
        self.trial_ended(each, outcome_without_run(each, "failed", error))

    def trial_ended(self, each: TrialRun, outcome: TrialOutcome) -> None:
        """A trial is over, well or not: write it down, then tell."""
        self.waiting.pop(each.trial, None)  # the process of a trial that waits can die, too
        metrics = {key: value for key, value in outcome.metrics.items() if key != "config"}
        self.journal.trial_ended(each.number, outcome.status, metrics, str(outcome.error or ""), each.judged_by)
        self.journal.flush()
        if self._remote is not None:
            self._remote.push()
        self.tell_end(each, outcome)
        self.memory.keep()
        self.stop.give_up_if_nothing_works()
        fail_fast = self.plan.run_config.failure_config.fail_fast
        if outcome.error is not None and fail_fast and not self.stop.stopping:
            self.stop.time_to_stop_s = self.plan.run_config.failure_config.stop_grace_s
            if fail_fast == "raise" and isinstance(outcome.error, Exception):
                self._fatal = original_error(outcome.error)
            self.stop.stop_everything(interrupted=True)

    def tell_end(self, each: TrialRun, outcome: TrialOutcome, *, to_searcher: bool = True) -> None:
        """Display, searcher and scheduler learn how a trial ended."""
        each.outcome = outcome
        failed = outcome.error is not None
        if outcome.error is not None:
            self.view.note_error(each.trial, outcome.error)
        if outcome.metrics:
            self.view.note_row(each.trial, outcome.metrics)
        elif not failed and each.has_files and not self.stop.stopping:
            self.audience.warn_once(
                f"{each.trial} ended without having reported anything: return a dict of metrics, or call report()."
            )
        self.audience.trial_changed(each.trial)
        with self.audience.guarded():
            if to_searcher and not each.was_told:
                last = {**each.judged_by, **outcome.metrics} if outcome.metrics else None
                tell_complete(self.plan.searcher, each.trial.trial_id, last, error=failed)
            if failed:
                self.plan.scheduler.on_trial_error(self.controller, each.trial)
            elif each.seen == 0 and not outcome.metrics:
                self.plan.scheduler.on_trial_remove(self.controller, each.trial)
            else:
                self.plan.scheduler.on_trial_complete(self.controller, each.trial, outcome.metrics)

    def give_back(self, each: TrialRun) -> None:
        if each.grant is not None:
            self.ledger.give_back(each.grant)
            each.grant = None

    def _may_go_on(self) -> bool:
        if self.stop.stopping:
            return False
        return bool(self.waiting) or not self.created_all or self._starter.asked_in_vain

    def _finish(self) -> None:
        status: Status = "interrupted" if self.stop.interrupted else "finished"
        self.journal.finished(status)
        self.journal.flush()
        self.audience.ended()
        self.result = self.grid()
        self.audience.progress.finished(ExperimentSummary(status, self._how_to_restore()))
        self.close()
        if self._fatal is not None:
            raise self._fatal

    def _how_to_restore(self) -> str:
        failed = any(each.outcome is not None and each.outcome.error is not None for each in self.trials)
        nothing_ran = not any(each.has_files for each in self.trials)
        if nothing_ran or (not self.stop.interrupted and not failed):
            return ""
        errored = ", resume_errored=True" if failed else ""
        return f"Tuner.restore({self.place.shown!r}, trainable=...{errored}).fit()"

    def grid(self) -> ResultGrid:
        """What was reached, trial by trial."""
        outcomes = [each.outcome or outcome_so_far(each) for each in self.trials]
        tune = self.plan.tune
        return ResultGrid(outcomes, experiment_path=self.place.shown, metric=tune.metric, mode=tune.mode)

    def break_off(self, status: Status, error: Exception | None = None) -> None:
        """The driver itself was interrupted, or code of the user's failed: end everything, keep what was reached."""
        self._broken_off = True
        self.stop.stopping = True
        self.stop.interrupted = True
        self.launcher.cancel()
        for each in self.trials:
            if each.building is not None:
                each.building.add_done_callback(_close_built_run)
                each.building = None
        self._break_off_runs()
        with contextlib.suppress(Exception):
            if self.result is None:
                self.journal.finished("interrupted")
                self.result = self.grid()
                self.audience.progress.finished(ExperimentSummary("interrupted", self._how_to_restore()))
        self.close()

    def _break_off_runs(self) -> None:
        """Those at work first: they end at once. The others, whose workers come or go, share one limit."""
        began = time.monotonic()
        running = [(each, each.run) for each in self.trials if each.run is not None]
        for each, run in sorted(running, key=lambda pair: pair[1].group is None):
            gone = time.monotonic() - began
            run.break_off(
                "interrupted",
                wait_s=max(0.0, BREAK_OFF_WAIT_S - gone),
                store_wait_s=max(LEAST_STORE_WAIT_S, STORE_WAIT_S - gone),
            )
            if run.result is not None:
                each.outcome = outcome_of_result(each, run.result)
            each.run = None

    def close(self) -> None:
        """Give everything back; safe to call at any time."""
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as stack:  # in this order from below, each whatever becomes of the others
            stack.callback(self._lock.release)
            stack.callback(self.launcher.close)
            if self._remote is not None:
                stack.callback(self._close_remote, self._remote)
            stack.callback(self.journal.close)
            stack.callback(self.audience.progress.close)
            for each in list(self.active):
                if each.run is not None:
                    stack.callback(each.run.close)

    def _close_remote(self, remote: RemoteJournal) -> None:
        remote.close(STORE_WAIT_S if self._broken_off else None)
        if remote.problem:
            self.audience.progress.warning(remote.problem)


def _close_built_run(building: Future[Run]) -> None:
    """Nobody waits for it any more: its files are given back."""
    if not building.cancelled() and building.exception() is None:
        building.result().close()
