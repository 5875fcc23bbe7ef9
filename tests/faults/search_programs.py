"""The experiments of the fault tests: trials that count, and things that go wrong in them.

`TunePlan` says what to search and what goes wrong where. A test runs a plan in its own process with
`make_tuner(plan).fit()`, or in a driver process that it can kill:
``python -m tests.faults.search_programs plan.json``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline import tune
from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, session
from paceline.air.errors import StopTraining
from paceline.testing.invariants import worker_descendants
from paceline.testing.processes import Marks
from paceline.testing.scripts import Action, perform, saved_iteration, write_state
from paceline.tune import ResultGrid, TuneConfig, Tuner

PAYLOAD = 1000
"""Bytes in each of the two data files of a checkpoint."""


@dataclass(frozen=True)
class TunePlan:
    """One experiment of counting trials."""

    storage: str
    marks: str
    name: str = "experiment"
    trials: int = 6
    at_once: int = 2
    iterations: int = 3
    every: int = 1
    """Save at every n-th iteration; 0 never saves."""
    searcher: str = "variants"
    """Or "optuna"."""
    seed: int = 7
    actions: tuple[Action, ...] = ()
    """What goes wrong in which trial: the `rank` of an action is the number of the trial."""
    restore: str | None = None
    """Continue the experiment in this directory instead of starting one."""
    resume: dict[str, Any] = field(default_factory=dict)
    """More arguments of Tuner.restore."""
    verbose: int = 0
    failures: dict[str, Any] = field(default_factory=dict)
    """Arguments of FailureConfig."""

    def continued(self, experiment: str | Path, **resume: Any) -> TunePlan:
        """The same plan, resumed, with nothing going wrong any more."""
        return replace(self, restore=str(experiment), actions=(), resume=resume)

    def save(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: str | Path) -> TunePlan:
        values = json.loads(Path(path).read_text())
        values["actions"] = tuple(Action(**action) for action in values["actions"])
        return cls(**values)


def space_of(plan: TunePlan) -> dict[str, Any]:
    return {
        "x": tune.uniform(0, 10),
        "branch": {"kind": tune.choice(["slow", "fast"])},
        "marks": plan.marks,
        "iterations": plan.iterations,
        "every": plan.every,
        "actions": [asdict(action) for action in plan.actions],
    }


def make_tuner(plan: TunePlan, **tune_config: Any) -> Tuner:
    """The Tuner of a plan; more of TuneConfig by keyword."""
    if plan.restore is not None:
        return Tuner.restore(plan.restore, counting_trial, **plan.resume)
    return Tuner(
        counting_trial,
        param_space=space_of(plan),
        tune_config=TuneConfig(
            num_samples=plan.trials,
            metric="score",
            mode="min",
            max_concurrent_trials=plan.at_once,
            **{"search_alg": searcher_of(plan), **tune_config},
        ),
        run_config=RunConfig(
            name=plan.name,
            storage_path=plan.storage,
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(**plan.failures),
            verbose=plan.verbose,
        ),
    )


def searcher_of(plan: TunePlan) -> Any:
    from paceline.tune.search import BasicVariantGenerator, OptunaSearch

    if plan.searcher == "optuna":
        return OptunaSearch(seed=plan.seed)
    return BasicVariantGenerator(random_state=plan.seed)


def counting_trial(config: dict[str, Any]) -> None:
    """Count to `iterations`, continuing where the checkpoint says, and tell the marks about it."""
    marks = Marks(config["marks"])
    trial = session.get_trial_id() or ""
    start = saved_iteration(session.get_checkpoint())
    marks.say("started", trial=trial, pid=os.getpid(), after=start)
    try:
        for iteration in range(start + 1, config["iterations"] + 1):
            _perform_actions(config, marks, trial, iteration)
            _report(config, marks, trial, iteration)
    except StopTraining:
        marks.say("stopping", trial=trial)
        raise
    marks.say("returning", trial=trial)


def _perform_actions(config: dict[str, Any], marks: Marks, trial: str, iteration: int) -> None:
    for action in config["actions"]:
        if (action["rank"], action["iteration"]) == (number_of(trial), iteration):
            perform(Action(**action), marks)


def _report(config: dict[str, Any], marks: Marks, trial: str, iteration: int) -> None:
    metrics = {"score": score(config, iteration), "iteration": iteration}
    if config["every"] and iteration % config["every"] == 0:
        with tempfile.TemporaryDirectory(dir=marks.directory) as directory:
            write_state(Path(directory), 0, iteration, PAYLOAD)
            session.report(metrics, checkpoint=Checkpoint.from_directory(directory))
        marks.say("saved", trial=trial, iteration=iteration)
    else:
        session.report(metrics)
    marks.say("reported", trial=trial, iteration=iteration)


def score(config: dict[str, Any], iteration: int) -> float:
    """Best at x = 3 on the fast branch; every iteration helps."""
    penalty = 1.0 if config["branch"]["kind"] == "slow" else 0.0
    return float((config["x"] - 3) ** 2 + penalty + 1 / iteration)


def number_of(trial_id: str) -> int:
    return int(trial_id.rpartition("_")[2])


def describe(grid: ResultGrid) -> dict[str, Any]:
    """What a test wants to know of a grid of another process, as plain values."""
    return {
        "path": grid.experiment_path,
        "statuses": [outcome.status for outcome in grid.outcomes],
        "iterations": [outcome.metrics.get("training_iteration") for outcome in grid.outcomes],
    }


def main(plan_path: str) -> None:
    """Run a plan; what came of it is left in the marks, and an error is raised like anybody's."""
    plan = TunePlan.load(plan_path)
    marks = Marks(plan.marks)
    try:
        grid = make_tuner(plan).fit()
    except KeyboardInterrupt as interruption:
        # In a notebook the driver lives on: the workers must be gone while it is still here.
        assert not worker_descendants()
        reached = getattr(interruption, "result", None)
        marks.say("outcome", outcome="interrupted", **(describe(reached) if reached else {}))
        raise
    marks.say("outcome", outcome="finished", **describe(grid))


if __name__ == "__main__":
    main(sys.argv[1])
