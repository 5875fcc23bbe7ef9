"""Signals to the driver of an experiment, and code of the user's that fails in it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import RunConfig
from paceline.testing.invariants import check_no_processes
from paceline.testing.processes import wait_for
from paceline.testing.scripts import Action
from paceline.tune import Callback, ResultGrid, Stopper, TuneConfig, TuneError, Tuner
from paceline.tune.schedulers import FIFOScheduler
from paceline.tune.schedulers.trial_scheduler import Decision
from paceline.tune.search import BasicVariantGenerator
from tests.faults.cases import mostly_slow
from tests.faults.search_programs import TunePlan, make_tuner
from tests.faults.tune_laboratory import TuneLaboratory
from tests.tune.counting import count
from tests.tune.search_invariants import check_finished, ended_trials

INTERRUPTED = (-signal.SIGINT, 130)
TERMINATED = 128 + signal.SIGTERM


@pytest.fixture
def lab(tmp_path: Path) -> TuneLaboratory:
    return TuneLaboratory(tmp_path)


def finish(lab: TuneLaboratory, plan: TunePlan) -> ResultGrid:
    """Restore the experiment and let its trials come to their end."""
    ended, before = ended_trials(lab.experiment), len(lab.marks.read("started"))
    grid = make_tuner(plan.continued(lab.experiment)).fit()
    check_finished(grid, trials=plan.trials, iterations=plan.iterations)
    assert not ended & {mark["trial"] for mark in lab.marks.read("started")[before:]}
    return grid


def waiting(lab: TuneLaboratory, *trials: int, iteration: int = 3) -> list[Action]:
    """These trials stand still before an iteration until the gate "worker" opens."""
    return [Action("wait", iteration, trial, str(lab.marks.directory)) for trial in trials]


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, INTERRUPTED), pytest.param(signal.SIGTERM, (TERMINATED,), marks=pytest.mark.slow)],
)
def test_one_signal_ends_every_trial_at_its_next_report(
    lab: TuneLaboratory, number: signal.Signals, status: tuple[int, ...]
) -> None:
    plan = lab.plan(*waiting(lab, 2, 3), trials=6, iterations=5, verbose=1)
    with lab.drive(plan) as driver:
        lab.marks.wait("action", 2, do="wait")
        driver.family()
        driver.send(number)
        wait_for(lambda: "next report" in driver.text(), "the driver to say that it stops")
        lab.marks.open_gate("worker")
        assert driver.wait() in status
        check_no_processes(lab.experiment, driver.known())
    assert len(lab.marks.read("stopping")) == 2
    if number == signal.SIGINT:
        outcome = lab.outcome()
        assert outcome["outcome"] == "interrupted"
        assert outcome["statuses"] == ["finished", "finished", "interrupted", "interrupted"]
        assert outcome["iterations"] == [5, 5, 3, 3]
    before = len(lab.marks.read("started"))
    finish(lab, plan)
    assert sorted(mark["after"] for mark in lab.marks.read("started")[before:]) == [0, 0, 3, 3]


def test_second_interrupt_does_not_wait(lab: TuneLaboratory) -> None:
    plan = lab.plan(Action("block", 3, 0), *waiting(lab, 1), trials=4, iterations=5, verbose=1)
    with lab.drive(plan) as driver:
        lab.marks.wait("action", 1, do="block")
        lab.marks.wait("action", 1, do="wait")
        driver.family()
        driver.send(signal.SIGINT)
        wait_for(lambda: "next report" in driver.text(), "the driver to say that it stops")
        driver.send(signal.SIGINT)
        assert driver.wait() in INTERRUPTED
        check_no_processes(lab.experiment, driver.known())
    assert lab.outcome()["statuses"] == ["interrupted", "interrupted"]
    assert lab.outcome()["iterations"] == [2, 2]
    before = len(lab.marks.read("started"))
    finish(lab, plan)
    assert sorted(mark["after"] for mark in lab.marks.read("started")[before:]) == [0, 0, 2, 2]


# -- code of the user's that fails in the driver ------------------------------------------------


class UserError(Exception):
    """Of the user's own code."""


class Fuse:
    """Blows at the n-th call."""

    def __init__(self, left: int) -> None:
        self.left = left

    def burn(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise UserError("in the user's code")


class FailingCallback(Callback):
    def __init__(self, hook: str, fuse: Fuse) -> None:
        setattr(self, hook, lambda *args, **info: fuse.burn())


class FailingScheduler(FIFOScheduler):
    def __init__(self, hook: str, fuse: Fuse) -> None:
        super().__init__()
        original = getattr(self, hook)

        def fail(*args: Any) -> Any:
            fuse.burn()
            return original(*args)

        setattr(self, hook, fail)

    def on_trial_result(self, controller: Any, trial: Any, result: Any) -> Decision:
        return self.CONTINUE


class FailingSearcher(BasicVariantGenerator):
    def __init__(self, hook: str, fuse: Fuse) -> None:
        super().__init__(random_state=1)
        original = getattr(self, hook)

        def fail(*args: Any, **keywords: Any) -> Any:
            fuse.burn()
            return original(*args, **keywords)

        setattr(self, hook, fail)


class FailingStopper(Stopper):
    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        self.fuse.burn()
        return False

    def stop_all(self) -> bool:
        return False


HOOKS = [
    ("callback", "on_trial_start", 2),
    ("callback", "on_trial_result", 5),
    ("callback", "on_checkpoint", 5),
    ("callback", "on_trial_complete", 2),
    ("scheduler", "on_trial_add", 3),
    ("scheduler", "on_trial_result", 5),
    ("scheduler", "on_trial_complete", 2),
    ("scheduler", "choose_trial_to_run", 5),
    ("searcher", "suggest", 3),
    ("searcher", "on_trial_complete", 2),
    ("stopper", "", 5),
]
EVERYDAY_HOOKS = [
    ("callback", "on_trial_result", 5),
    ("scheduler", "choose_trial_to_run", 5),
    ("searcher", "suggest", 3),
]


@pytest.mark.parametrize(("part", "hook", "times"), mostly_slow(HOOKS, everyday=EVERYDAY_HOOKS))
def test_error_of_users_code_comes_out_of_fit(lab: TuneLaboratory, part: str, hook: str, times: int) -> None:
    """Nothing is left running, and without the bug the experiment goes on where it was."""
    fuse = Fuse(times)
    space = {"x": tune.uniform(0, 1), "marks": str(lab.marks.directory)}
    tuner = Tuner(
        count,
        param_space=space,
        tune_config=TuneConfig(
            num_samples=4,
            max_concurrent_trials=2,
            scheduler=FailingScheduler(hook, fuse) if part == "scheduler" else None,
            search_alg=FailingSearcher(hook, fuse) if part == "searcher" else None,
        ),
        run_config=RunConfig(
            name="bugs",
            storage_path=str(lab.storage),
            verbose=0,
            callbacks=[FailingCallback(hook, fuse)] if part == "callback" else [],
            stop=FailingStopper(fuse) if part == "stopper" else None,
        ),
    )
    with pytest.raises(TuneError if part == "callback" else UserError, match="user's code"):
        tuner.fit()
    check_no_processes(lab.experiment)
    ended, before = ended_trials(lab.experiment), len(lab.marks.read("started"))
    mended = TuneConfig(
        scheduler=FIFOScheduler() if part == "scheduler" else None,
        search_alg=BasicVariantGenerator(random_state=1) if part == "searcher" else None,
    )
    grid = Tuner.restore(lab.experiment, count, tune_config=mended, run_config=RunConfig(verbose=0)).fit()
    check_finished(grid, trials=4, iterations=3)
    assert not ended & {mark["trial"] for mark in lab.marks.read("started")[before:]}
