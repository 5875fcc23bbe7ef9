"""Drives a scheduler over recorded curves: an experiment without processes.

The order in which trials report is drawn from a seed, so that one set of curves gives
as many histories as there are seeds. What the scheduler was told is recorded, and
`replayed` tells it to another one, as restoring an experiment does.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.air.metrics import nested_get
from paceline.run.spec import Trial
from paceline.tune.schedulers.trial_scheduler import Decision, Restart, TrialScheduler

Curve = Sequence[Mapping[str, Any]]
"""The rows of a trial, if nobody stops it."""


@dataclass
class SimulatedCall:
    """One call of a hook, as an experiment writes it down."""

    hook: str
    trial: int | None
    row: Mapping[str, Any] | None = None
    decision: Decision | None = None


@dataclass
class SimulatedChange:
    """What became of a trial between two calls."""

    trial: int
    attribute: str
    value: Any


class SchedulerSimulation:
    """An experiment's side of the contract, for one scheduler.

    `rows_taken[i]` is how many rows trial i reported before it ended, `ended[i]` how:
    "complete" (its curve was over), "stop" (the scheduler said so of a running trial),
    "remove" (it was stopped while it waited) or "error" (as `failing` said: trial i after so
    many rows). With `most_open` the search holds back while as many trials have not ended,
    paused ones included, like a searcher with limited concurrency.
    """

    metric: str | None
    mode: str | None
    replaying = False

    def __init__(
        self,
        scheduler: TrialScheduler,
        curves: Sequence[Curve],
        *,
        metric: str = "score",
        mode: str = "max",
        slots: int = 4,
        seed: int = 0,
        failing: Mapping[int, int] | None = None,
        most_open: int | None = None,
        experiment_path: str = "",
    ) -> None:
        self.scheduler = scheduler
        self.curves = curves
        self.metric, self.mode = metric, mode
        self.experiment_path = experiment_path
        self.slots = slots
        self.failing = failing or {}
        self.most_open = most_open
        self.random = random.Random(seed)
        self.trials: list[Trial] = []
        self.rows_taken: dict[int, int] = {}
        self.ended: dict[int, str] = {}
        self.decisions: list[tuple[int, int, Decision]] = []
        """(trial, rows taken, decision) of every decision but CONTINUE, in order."""
        self.stalls = 0
        self.most_paused = 0
        self.history: list[SimulatedCall | SimulatedChange] = []
        self._number: dict[Trial, int] = {}
        self._queued: list[tuple[Trial, Restart | None]] = []
        """What is to be done when the scheduler has returned: stop the trial, or change it."""
        if not scheduler.set_search_properties(metric, mode):
            raise AssertionError(f"the scheduler refused metric={metric!r}, mode={mode!r}")
        scheduler.set_seed(seed)

    def run(self) -> SchedulerSimulation:
        """Until every trial has ended."""
        while self.step():
            pass
        return self

    def step(self) -> bool:
        """Start what can start, and take one row of a running trial; False if all is over."""
        self._fill_slots()
        running = self._with_status("RUNNING")
        if running:
            self._advance(self.random.choice(running))
            self._carry_out_queued()
        elif self.waiting_trials():
            self._stall()
        else:
            return False
        return True

    @property
    def calls(self) -> list[SimulatedCall]:
        return [item for item in self.history if isinstance(item, SimulatedCall)]

    # What a scheduler may ask: see Controller.

    @property
    def expects_more_trials(self) -> bool:
        return len(self.trials) < len(self.curves)

    @property
    def total_resources(self) -> dict[str, float]:
        return {"CPU": float(self.slots)}

    @property
    def free_resources(self) -> dict[str, float]:
        return {"CPU": float(self.slots - len(self._with_status("RUNNING")))}

    def get_trials(self) -> list[Trial]:
        return list(self.trials)

    def waiting_trials(self) -> list[Trial]:
        stopped = [trial for trial, restart in self._queued if restart is None]
        return [trial for trial in self._with_status("PENDING", "PAUSED") if trial not in stopped]

    def has_resources_for(self, trial: Trial) -> bool:
        return self.free_resources["CPU"] >= 1

    def stop_trial(self, trial: Trial) -> None:
        assert trial.status in ("PENDING", "PAUSED"), f"stop_trial({trial}) of a trial that is {trial.status}"
        self._queued.append((trial, None))

    def restart_trial(self, trial: Trial, restart: Restart) -> None:
        assert trial.status == "PAUSED", f"restart_trial({trial}) of a trial that is {trial.status}"
        self._queued.append((trial, restart))

    # How it runs.

    def _fill_slots(self) -> None:
        while len(self._with_status("RUNNING")) < self.slots:
            chosen = self._chosen()
            if chosen is not None:
                assert chosen.status in ("PENDING", "PAUSED"), f"{chosen} was chosen to run, but is {chosen.status}"
                self._set(chosen, "status", "RUNNING")
            elif self.expects_more_trials and not self._search_holds_back():
                self._create()
            else:
                return

    def _chosen(self) -> Trial | None:
        chosen = self.scheduler.choose_trial_to_run(self)
        self._carry_out_queued()
        return chosen

    def _search_holds_back(self) -> bool:
        return self.most_open is not None and len(self.trials) - len(self.ended) >= self.most_open

    def _create(self) -> None:
        number = len(self.trials)
        trial = Trial(f"51a7e_{number:05d}", "simulated", "", "51a7e", config={"number": number})
        self.trials.append(trial)
        self._number[trial] = number
        self.rows_taken[number] = 0
        self._tell("on_trial_add", trial)
        self._carry_out_queued()

    def _advance(self, trial: Trial) -> None:
        number = self._number[trial]
        taken = self.rows_taken[number]
        if self.failing.get(number) == taken:
            self._end(trial, "error")
            return
        if taken == len(self.curves[number]):
            self._end(trial, "complete")
            return
        row = self.curves[number][taken]
        self.rows_taken[number] += 1
        decision = self._tell("on_trial_result", trial, row)
        self._set(trial, "last_result", dict(row))
        if decision != TrialScheduler.CONTINUE:
            self.decisions.append((number, taken + 1, decision))
        if decision == TrialScheduler.STOP:
            self._end(trial, "stop")
        elif decision == TrialScheduler.PAUSE:
            self._set(trial, "status", "PAUSED")
            self.most_paused = max(self.most_paused, len(self._with_status("PAUSED")))
        elif isinstance(decision, Restart):
            self._change(trial, decision)

    def _carry_out_queued(self) -> None:
        while self._queued:  # the end of a trial may lead to more
            trial, restart = self._queued.pop(0)
            if trial.status not in ("PENDING", "PAUSED"):
                continue
            if restart is None:
                self._end(trial, "remove")
            else:
                self._change(trial, restart)

    def _change(self, trial: Trial, restart: Restart) -> None:
        if restart.config is not None:
            self._set(trial, "config", restart.config)

    def _end(self, trial: Trial, how: str) -> None:
        number = self._number[trial]
        assert number not in self.ended, f"trial {number} ends twice"
        self.ended[number] = how
        self._set(trial, "status", "ERROR" if how == "error" else "TERMINATED")
        if how == "error":
            self._tell("on_trial_error", trial)
        elif self.rows_taken[number] == 0:
            self._tell("on_trial_remove", trial)
        else:
            self._tell("on_trial_complete", trial, trial.last_result)

    def _stall(self) -> None:
        self.stalls += 1
        before = [trial.status for trial in self.trials]
        self._tell("on_stall", None)
        self._carry_out_queued()
        helped = self._chosen() or [trial.status for trial in self.trials] != before
        assert helped, f"nothing can run any more: {self.scheduler.debug_string()}"

    def _tell(self, hook: str, trial: Trial | None, row: Mapping[str, Any] | None = None) -> Any:
        call = SimulatedCall(hook, None if trial is None else self._number[trial], row)
        self.history.append(call)
        call.decision = self._make(call)
        return call.decision

    def _make(self, call: SimulatedCall) -> Any:
        arguments = [] if call.trial is None else [self.trials[call.trial]]
        return getattr(self.scheduler, call.hook)(self, *arguments, *([] if call.row is None else [call.row]))

    def _set(self, trial: Trial, attribute: str, value: Any) -> None:
        self.history.append(SimulatedChange(self._number[trial], attribute, value))
        setattr(trial, attribute, value)

    def _with_status(self, *statuses: str) -> list[Trial]:
        return [trial for trial in self.trials if trial.status in statuses]


class _Replay(SchedulerSimulation):
    """Goes through a history: knows the trials and their states, and does nothing to them."""

    replaying = True

    def stop_trial(self, trial: Trial) -> None:
        pass

    def restart_trial(self, trial: Trial, restart: Restart) -> None:
        pass

    def repeat(self, earlier: SchedulerSimulation) -> list[Decision | None]:
        decisions = []
        for trial in earlier.trials:
            trial.status, trial.last_result, trial.config = "PENDING", {}, {"number": earlier._number[trial]}
        for item in earlier.history:
            if isinstance(item, SimulatedChange):
                setattr(self.trials[item.trial], item.attribute, item.value)
                continue
            if item.hook == "on_trial_add":
                self.trials.append(earlier.trials[len(self.trials)])
            decisions.append(self._make(SimulatedCall(item.hook, item.trial, self._kept(item.row))))
        return decisions

    def _kept(self, row: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        keys = self.scheduler.result_keys
        return row if row is None or keys is None else {key: nested_get(row, key) for key in keys}


def replayed(scheduler: TrialScheduler, earlier: SchedulerSimulation, *, seed: int) -> list[Decision | None]:
    """Tell `scheduler` what the scheduler of an earlier simulation was told, and return what it says to each call.

    Only the keys of rows that it names are handed over, as only those are kept for a
    restore. Afterwards it can take the place of the other one.
    """
    replay = _Replay(
        scheduler,
        earlier.curves,
        metric=str(earlier.metric),
        mode=str(earlier.mode),
        seed=seed,
        experiment_path=earlier.experiment_path,
    )
    return replay.repeat(earlier)
