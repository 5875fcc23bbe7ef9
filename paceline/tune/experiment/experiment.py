"""An Experiment: asks for configurations, runs each as a trial, and lets scheduler and searcher decide.

Reading order: `step` (start what may start, listen, act on what was heard), then trials.py (the table that all parts
share), starting.py, deciding.py (what becomes of a trial after a row) and ending.py. Everything that was decided is
appended to the journal, in the order in which it happened: see records.py.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import Future

from paceline.air.result import Status
from paceline.engine.base import Engine
from paceline.engine.choose import announcement
from paceline.run.decisions import Wait
from paceline.run.found_runs import search_line
from paceline.run.phases import Phase
from paceline.run.run import BREAK_OFF_WAIT_S, STORE_WAIT_S, Run
from paceline.tune.experiment.answering import SearchDesk
from paceline.tune.experiment.audience import Audience
from paceline.tune.experiment.deciding import Decisions
from paceline.tune.experiment.ending import Endings, Stopping
from paceline.tune.experiment.files import ExperimentFiles, ExperimentPlace
from paceline.tune.experiment.rooms import Rooms
from paceline.tune.experiment.setup import SearchSetup, arguments_again
from paceline.tune.experiment.starting import Launcher, Starter
from paceline.tune.experiment.trials import ExperimentController, Ledger, Shared, TrialRun, Trials
from paceline.tune.progress.view import ExperimentEnd, ExperimentView
from paceline.tune.result_grid import ResultGrid
from paceline.tune.trial_outcome import outcome_of_result, outcome_so_far

WAIT_S = 0.1
"""How long a step waits for news; reports, deaths and finished work end the wait at once."""
STEP_EVERY_S = 0.2
"""How often a run is stepped even though nothing happens, so that it can look at its clocks."""
LEAST_STORE_WAIT_S = 1.0
"""For each trial, once a remote store has used up the time that all of them share after an interrupt."""


class Experiment:
    """The state machine of one experiment. Use it from one thread."""

    def __init__(self, setup: SearchSetup, engine: Engine, place: ExperimentPlace) -> None:
        self.result: ResultGrid | None = None
        self._engine = engine
        reserves = engine.capabilities.chooses_nodes
        trials = Trials(Ledger(engine.resources(), () if reserves else engine.gpu_names(), decides=not reserves))
        audience = Audience(setup.run_config, _view(setup, place, trials.ledger))
        files = ExperimentFiles(place, setup.run_config)
        controller = ExperimentController(setup, place, trials)
        self.shared = shared = Shared(setup, place, trials, audience, files, controller)
        self.launcher = Launcher(shared, engine)
        self.decisions = Decisions(shared, self.launcher)
        self.stop = Stopping(shared)
        self.endings = Endings(shared, self.stop)
        self._desk = SearchDesk(shared, self.stop, self.endings)
        self._rooms = Rooms(shared, engine)
        self._starter = Starter(shared, self.launcher, self._rooms, self.decisions, self.stop, self.endings)
        self._has_begun = False
        self._closed = False

    # -- the loop's view ------------------------------------------------------------------

    @property
    def starting(self) -> bool:
        """A signal asks for a graceful stop at any time: trials come and go."""
        return False

    @property
    def done(self) -> bool:
        return self.result is not None

    @property
    def stopped_by_signal(self) -> int | None:
        return self.stop.signal

    def request_stop(self, signal_number: int) -> None:
        """Ask for a graceful stop of every trial. Safe in a signal handler."""
        self.stop.signal = signal_number

    def step(self, timeout: float = WAIT_S) -> None:
        """Advance: start trials, hear what workers said, act on it."""
        if not self._has_begun:
            self._begin()
        self._desk.look()
        self.stop.look_for_reasons()
        self._starter.start_more()
        self._listen(timeout)
        self.shared.files.flush()
        self.shared.audience.tick()
        if not self.shared.trials.active and not self._may_continue():
            self._finish()

    def _begin(self) -> None:
        self._has_begun = True
        self.stop.start_clock()
        setup, audience = self.shared.setup, self.shared.audience
        if where := announcement(self._engine, setup.run_config.engine):
            audience.note(where)
        audience.started(setup.tune.num_samples, setup.total)
        if setup.metric is not None and setup.mode is None:
            audience.note(f"Is {setup.metric!r} to be small or large? TuneConfig(mode=...) says it.")

    def _listen(self, timeout: float) -> None:
        """Wait for news of any trial and let those that have some take a step."""
        now, active = time.monotonic(), self.shared.trials.active
        groups = {group: trial_run for trial_run in active if trial_run.run and (group := trial_run.run.group)}
        soonest = min([trial_run.due for trial_run in active] + [self.stop.deadline])
        ready = self._engine.wait(list(groups), max(0.0, min(timeout, soonest - now)))
        heard = {id(groups[group]) for group in ready}
        now = time.monotonic()
        for trial_run in list(active):
            run = trial_run.run
            waits_for_nobody = run is None or run.may_have_news
            if id(trial_run) in heard or now >= trial_run.due or waits_for_nobody:
                self._step_trial(trial_run)

    def _step_trial(self, trial_run: TrialRun) -> None:
        try:
            self._starter.take_built_run(trial_run)
            run = trial_run.run
            if run is None:
                trial_run.due = time.monotonic() + STEP_EVERY_S
                return
            if not self._rooms.has_room_again(trial_run, run):
                trial_run.due = time.monotonic() + STEP_EVERY_S
                return
            decision = run.step(0.0)
            if isinstance(decision, Wait):
                self.decisions.pause(trial_run)
            self.endings.carry_out_queued()
            trial_run.due = min(run.wakes_at, time.monotonic() + STEP_EVERY_S)
        except Exception as error:
            self.endings.failed_in_driver(trial_run, error)
            return
        if run.done:
            assert run.result is not None
            self.endings.run_ended(trial_run, run.result)
        elif run.is_over and self.shared.setup.may_overlap and not trial_run.trial.resources.get("GPU"):
            # Processes that only have to end need no CPU; the memory of a card they do hold.
            self.shared.trials.give_back(trial_run)
        elif run.phase is Phase.SUSPENDED:
            self.shared.trials.no_longer_active(trial_run)

    # -- the end --------------------------------------------------------------------------

    def _may_continue(self) -> bool:
        if self.stop.stopping:
            return False
        return bool(self.shared.trials.waiting) or not self.shared.trials.are_complete or self._starter.asked_in_vain

    def _finish(self) -> None:
        status: Status = "interrupted" if self.stop.interrupted else "finished"
        self.shared.files.journal.left(status)
        self.shared.files.journal.flush()
        self.shared.audience.ended()
        self.result = self.grid()
        self.shared.audience.finished(ExperimentEnd(status, self._how_to_restore()))
        self.close()
        if self.stop.error is not None:
            raise self.stop.error

    def _how_to_restore(self) -> str:
        outcomes = [trial_run.outcome for trial_run in self.shared.trials]
        failed = any(outcome is not None and outcome.error is not None for outcome in outcomes)
        nothing_ran = not any(trial_run.has_files for trial_run in self.shared.trials)
        if nothing_ran or (not self.stop.interrupted and not failed):
            return ""
        return search_line(self.shared.place.shown, arguments_again(self.shared.setup), resume_errored=failed)

    def grid(self) -> ResultGrid:
        """What was reached, trial by trial."""
        outcomes = [trial_run.outcome or outcome_so_far(trial_run) for trial_run in self.shared.trials]
        tune = self.shared.setup.tune
        return ResultGrid(
            outcomes,
            experiment_path=self.shared.place.shown,
            metric=tune.metric,
            mode=tune.mode,
            how_to_continue=self._how_to_restore(),
        )

    def break_off(self, status: Status, error: Exception | None = None) -> None:
        """The driver itself was interrupted, or code of the user's failed: end everything, keep what was reached."""
        self.stop.stopping = True
        self.stop.interrupted = True
        self.launcher.cancel()
        for trial_run in self.shared.trials:
            if trial_run.building is not None:
                trial_run.building.add_done_callback(_close_built_run)
                trial_run.building = None
        self._break_off_runs()
        with contextlib.suppress(Exception):
            if self.result is None and self._has_begun:
                self.shared.audience.ended()
        with contextlib.suppress(Exception):
            if self.result is None:
                self.shared.files.journal.left("interrupted")
                self.result = self.grid()
                self.shared.audience.finished(ExperimentEnd("interrupted", self._how_to_restore()))
        self.close(STORE_WAIT_S)

    def _break_off_runs(self) -> None:
        """Those at work first: they end at once. The others, whose workers come or go, share one limit."""
        began = time.monotonic()
        running = [(trial_run, trial_run.run) for trial_run in self.shared.trials if trial_run.run is not None]
        for trial_run, run in sorted(running, key=lambda pair: pair[1].group is None):
            gone = time.monotonic() - began
            run.break_off(
                "interrupted",
                wait_s=max(0.0, BREAK_OFF_WAIT_S - gone),
                store_wait_s=max(LEAST_STORE_WAIT_S, STORE_WAIT_S - gone),
            )
            if run.result is not None:
                trial_run.outcome = outcome_of_result(trial_run.trial, run.result)
            trial_run.run = None

    def close(self, store_wait_s: float | None = None) -> None:
        """Give everything back; safe to call at any time. None: a remote store gets the time that it needs."""
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as stack:  # in this order from below, each whatever becomes of the others
            stack.callback(self.shared.files.unlock)
            stack.callback(self.shared.files.shared_sync.close)
            stack.callback(self.launcher.close)
            stack.callback(self._close_journal, store_wait_s)
            stack.callback(self.shared.audience.close)
            for trial_run in self.shared.trials:
                stack.callback(trial_run.release_room)
                stack.callback(trial_run.forget_change)  # others need not keep checkpoints for it
            for trial_run in list(self.shared.trials.active):
                if trial_run.run is not None:
                    stack.callback(trial_run.run.close)

    def _close_journal(self, store_wait_s: float | None) -> None:
        self.shared.files.close_journal(store_wait_s)
        if self.shared.files.warning:
            self.shared.audience.warn(self.shared.files.warning)


def _view(setup: SearchSetup, place: ExperimentPlace, ledger: Ledger) -> ExperimentView:
    """What the displays show."""
    return ExperimentView(
        name=place.name,
        experiment_path=place.shown,
        trials=[],
        metric=setup.metric,
        mode=setup.mode,
        total=setup.total,
        used=ledger.used,
        resources=ledger.total,
        scheduler_info=setup.scheduler.debug_string,
    )


def _close_built_run(building: Future[Run]) -> None:
    """Nobody waits for it any more: its files are given back."""
    if not building.cancelled() and building.exception() is None:
        building.result().close()
