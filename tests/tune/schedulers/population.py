"""A population that trains without processes: a weight that grows, by as much as the configuration is good."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.air.checkpoint import Checkpoint
from paceline.run.spec import Trial
from paceline.tune.schedulers.trial_scheduler import Decision, Restart, TrialScheduler

Gain = Callable[[dict[str, Any]], float]


@dataclass
class Call:
    """What the scheduler was told, and what it said."""

    hook: str
    trial: int | None
    row: dict[str, Any] | None
    restarts: dict[int, Restart] = field(default_factory=dict)


class Population:
    """An experiment of trials that report `steps` rows each, the order being drawn from `seed`.

    At most `open_trials` are unfinished at a time, as with a search that wants results
    before it goes on. `failing` has the iteration at which a trial fails.
    `parents` has (trial, its iteration, donor) of every restart.
    """

    replaying = False
    metric: str | None = "score"

    def __init__(
        self,
        scheduler: TrialScheduler,
        configs: Sequence[dict[str, Any]],
        gain: Gain = lambda config: config["lr"],
        *,
        steps: int = 8,
        slots: int = 4,
        seed: int = 0,
        mode: str = "max",
        path: Path | str = "",
        checkpoints: bool = True,
        open_trials: int | None = None,
        failing: Mapping[int, int] | None = None,
    ) -> None:
        self.scheduler, self.configs, self.gain = scheduler, configs, gain
        self.steps, self.slots, self.mode = steps, slots, mode
        self.experiment_path, self.checkpoints = str(path), checkpoints
        self.open_trials, self.failing = open_trials or len(configs), failing or {}
        self.random = random.Random(seed)
        self.trials: list[Trial] = []
        self.weights: list[float] = []
        self.iterations: list[int] = []
        self.parents: list[tuple[int, int, int]] = []
        self.spread = 0
        """The most that one unfinished trial was ahead of another."""
        self.calls: list[Call] = []
        assert scheduler.set_search_properties(self.metric, mode)
        scheduler.set_seed(seed)

    def run(self) -> Population:
        while True:
            self._fill_slots()
            running = self._with_status("RUNNING")
            if running:
                self._step(self.random.choice(running))
            elif self.waiting_trials():
                self._tell("on_stall", None)
                assert self.scheduler.choose_trial_to_run(self) is not None, "nothing can run any more"
            else:
                return self

    # What a scheduler may ask: see Controller.

    @property
    def expects_more_trials(self) -> bool:
        return len(self.trials) < len(self.configs)

    @property
    def total_resources(self) -> dict[str, float]:
        return {"CPU": float(self.slots)}

    @property
    def free_resources(self) -> dict[str, float]:
        return {"CPU": float(self.slots - len(self._with_status("RUNNING")))}

    def get_trials(self) -> list[Trial]:
        return list(self.trials)

    def waiting_trials(self) -> list[Trial]:
        return self._with_status("PENDING", "PAUSED")

    def has_resources_for(self, trial: Trial) -> bool:
        return self.free_resources["CPU"] >= 1

    def stop_trial(self, trial: Trial) -> None:
        raise AssertionError("a population stops nobody")

    def restart_trial(self, trial: Trial, restart: Restart) -> None:
        assert trial.status == "PAUSED"
        self._restart(trial, restart)

    # How it runs.

    def _fill_slots(self) -> None:
        declined = False
        while len(self._with_status("RUNNING")) < self.slots:
            chosen = self.scheduler.choose_trial_to_run(self)
            if chosen is not None:
                chosen.status, declined = "RUNNING", False
            elif self.expects_more_trials and len(self._with_status("RUNNING", "PENDING", "PAUSED")) < self.open_trials:
                self._create()
            elif declined:
                return
            else:
                declined = True

    def _create(self) -> None:
        number = len(self.trials)
        self.trials.append(new_trial(number, self.configs[number]))
        self.weights.append(0.0)
        self.iterations.append(0)
        self._tell("on_trial_add", number)

    def _step(self, trial: Trial) -> None:
        number = self.trials.index(trial)
        if self.iterations[number] == self.failing.get(number):
            trial.status = "ERROR"
            self._tell("on_trial_error", number)
            return
        if self.iterations[number] == self.steps:
            trial.status = "TERMINATED"
            self._tell("on_trial_complete", number, trial.last_result)
            return
        self.iterations[number] += 1
        self.weights[number] += self.gain(trial.config)
        if self.checkpoints:
            trial.checkpoint = Checkpoint.from_dict({"weight": self.weights[number]})
        score = self.weights[number] if self.mode == "max" else -self.weights[number]
        row = {"training_iteration": self.iterations[number], "score": score}
        decision = self._tell("on_trial_result", number, row)
        trial.last_result = row
        unfinished = [at for at, each in zip(self.iterations, self.trials, strict=True) if not each.is_finished]
        self.spread = max(self.spread, max(unfinished) - min(unfinished))
        if decision == TrialScheduler.PAUSE:
            trial.status = "PAUSED"
        elif isinstance(decision, Restart):
            self._restart(trial, decision)
        else:
            assert decision == TrialScheduler.CONTINUE

    def _restart(self, trial: Trial, restart: Restart) -> None:
        number, source = self.trials.index(trial), restart.donor or trial
        self.calls[-1].restarts[number] = restart
        assert source.checkpoint is not None
        self.weights[number] = source.checkpoint.to_dict()["weight"]
        self.parents.append((number, self.iterations[number], self.trials.index(source)))
        if restart.config is not None:
            trial.config = restart.config

    def _tell(self, hook: str, number: int | None, row: dict[str, Any] | None = None) -> Any:
        call = Call(hook, number, row)
        self.calls.append(call)
        return told(self.scheduler, self, call)

    def _with_status(self, *statuses: str) -> list[Trial]:
        return [trial for trial in self.trials if trial.status in statuses]


class Replay(Population):
    """Makes the calls of an earlier population again, with what the journal of an experiment keeps.

    `replaying` ends after `calls_before` calls; from then on `said` has what the scheduler answers.
    Checkpoints are not known during the replay.
    """

    def __init__(self, scheduler: TrialScheduler, earlier: Population, calls_before: int, **options: Any) -> None:
        super().__init__(scheduler, earlier.configs, earlier.gain, **options)
        self.said: list[tuple[int, Restart]] = []
        for place, call in enumerate(earlier.calls):
            self.replaying = place < calls_before
            if call.hook == "on_trial_add":
                self.trials.append(new_trial(len(self.trials), self.configs[len(self.trials)]))
            if not self.replaying:
                for trial in self.trials:
                    trial.checkpoint = Checkpoint.from_dict({})
            kept = scheduler.result_keys
            row = call.row and {key: call.row[key] for key in (call.row if kept is None else kept) if key in call.row}
            decision = told(scheduler, self, Call(call.hook, call.trial, row))
            if isinstance(decision, Restart) and not self.replaying:
                assert call.trial is not None
                self.said.append((call.trial, decision))
            for number, restart in call.restarts.items():
                assert restart.config is not None
                self.trials[number].config = restart.config

    def restart_trial(self, trial: Trial, restart: Restart) -> None:
        if not self.replaying:
            self.said.append((self.trials.index(trial), restart))


def new_trial(number: int, config: dict[str, Any]) -> Trial:
    return Trial(f"51a7e_{number:05d}", "simulated", "", "51a7e", config=config, resources={"CPU": 1.0})


def told(scheduler: TrialScheduler, controller: Population, call: Call) -> Decision | None:
    arguments: list[Any] = [] if call.trial is None else [controller.trials[call.trial]]
    if call.row is not None:
        arguments.append(call.row)
    decision: Decision | None = getattr(scheduler, call.hook)(controller, *arguments)
    return decision
