"""Trials that a scheduler lets wait: they keep their place, and nothing waits forever."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import FailureConfig, ScalingConfig, session
from paceline.air.errors import ConfigError
from paceline.run.spec import Trial
from paceline.testing.processes import Marks
from paceline.train import DataParallelTrainer
from paceline.tune.schedulers import (
    FIFOScheduler,
    HyperBandScheduler,
    TrialScheduler,
)
from paceline.tune.schedulers.trial_scheduler import Controller, Decision
from tests.tune.searching import climbing, column, config_of, processes_of, search, steps_taken, tuner

pytestmark = pytest.mark.usefixtures("two_cpus")


# -- brackets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("saves", [False, True], ids=["processes wait", "processes end"])
def test_trials_of_a_bracket_wait_for_each_other_and_lose_nothing(tmp_path: Path, saves: bool) -> None:
    """Nine trials to 1, the best three of them to 3, the best to 9; two at a time."""
    marks = Marks(tmp_path / "marks")
    grid = search(
        climbing(marks, saves=saves),
        {"x": tune.grid_search([5, 9, 1, 7, 2, 8, 3, 6, 4])},
        scheduler=HyperBandScheduler(max_t=9, reduction_factor=3),
        metric="score",
        mode="max",
    )
    reached = {9: 9, 8: 3, 7: 3}
    for result in grid:
        x = config_of(result)["x"]
        assert steps_taken(marks, result) == column(result, "step") == list(range(1, reached.get(x, 1) + 1))
        rounds = {9: 3, 8: 2, 7: 2}.get(x, 1)
        assert processes_of(marks, result) <= (rounds if saves else 1)
    assert grid.num_terminated == 9


def test_a_bracket_that_nobody_fills_goes_on_with_those_it_has(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    grid = search(
        climbing(marks, saves=False),
        {"x": tune.grid_search([3, 1, 2])},
        scheduler=HyperBandScheduler(max_t=9, reduction_factor=3),
        metric="score",
        mode="max",
    )
    assert [len(steps_taken(marks, result)) for result in grid] == [9, 1, 1]


def test_on_the_inline_engine_trials_can_wait_only_if_their_worker_can_end(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "scheduler": HyperBandScheduler(max_t=9, reduction_factor=3),
        "metric": "score",
        "mode": "max",
        "engine": "inline",
    }
    space = {"x": tune.grid_search([5, 9, 1, 7, 2, 8, 3, 6, 4])}
    marks = Marks(tmp_path / "marks")
    grid = search(climbing(marks, saves=True), space, **settings)
    assert [result.metrics["training_iteration"] for result in grid] == [1, 9, 1, 3, 1, 3, 1, 1, 1]
    with pytest.raises(ConfigError, match=r"HyperBandScheduler.*train_\w+.*'inline'.*checkpoint.*'local'"):
        search(climbing(marks, saves=False), space, **settings)


def test_trainers_wait_too() -> None:
    def train(config: dict[str, Any]) -> None:
        for _ in range(100):
            session.report({"score": config["x"], "size": session.get_world_size()})

    trainer = DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=2))
    grid = search(
        trainer,
        {"train_loop_config": {"x": tune.grid_search([1, 3, 2])}},
        scheduler=HyperBandScheduler(max_t=4, reduction_factor=4),
        metric="score",
        mode="max",
    )
    assert [result.metrics["training_iteration"] for result in grid] == [1, 4, 1]
    assert {result.metrics["size"] for result in grid} == {2}


# -- processes that die, and schedulers that choose nothing ---------------------------------------


def report_once(config: dict[str, Any]) -> None:
    session.report({"loss": 1.0})


class FirstWaits(TrialScheduler):
    """The first trial waits after its first row until the second one has ended, which kills its process meanwhile."""

    second_has_ended = False

    def on_trial_result(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> Decision:
        if trial.trial_id.endswith("_00001"):
            first = controller.get_trials()[0]
            if result["training_iteration"] == 1:
                os.kill(first.last_result["pid"], signal.SIGKILL)
            return self.CONTINUE
        return self.PAUSE if result["training_iteration"] == 1 else self.CONTINUE

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> None:
        self.second_has_ended = True

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        ready = [each for each in controller.waiting_trials() if each.status == "PENDING" or self.second_has_ended]
        return ready[0] if ready else None


@pytest.mark.parametrize("retries", [0, 1])
def test_process_that_dies_while_it_waits(tmp_path: Path, retries: int) -> None:
    marks = Marks(tmp_path / "marks")

    def train(config: dict[str, Any]) -> None:
        for step in range(40):  # long enough for the death of the other to be noticed
            marks.say("step", trial=session.get_trial_id())
            session.report({"step": step})

    grid = tuner(
        train,
        num_samples=2,
        max_concurrent_trials=1,
        scheduler=FirstWaits(),
        failure_config=FailureConfig(max_failures=retries),
        storage_path=str(tmp_path),
    ).fit()
    order = [mark["trial"][-1] for mark in marks.read("step")]
    if retries:  # it starts anew when it is its turn, not before
        assert not grid.errors
        assert order == ["0"] + ["1"] * 40 + ["0"] * 40
        assert [column(result, "step") for result in grid] == [list(range(40))] * 2
    else:
        (error,) = grid.errors
        assert "SIGKILL" in str(error)
        assert order == ["0"] + ["1"] * 40


class NeverChooses(TrialScheduler):
    def on_trial_result(self, controller: Controller, trial: Trial, result: Mapping[str, Any]) -> Decision:
        return self.CONTINUE

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        return None


def test_scheduler_that_lets_nothing_run_does_not_hang(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    search = tuner(report_once, {}, num_samples=3, scheduler=NeverChooses(), storage_path=str(tmp_path), verbose=1)
    assert [outcome.metrics for outcome in search.fit().outcomes] == [{}, {}, {}]
    assert re.search(r"scheduler.*report_once_\w+_00000", "".join(capfd.readouterr()))


@pytest.mark.parametrize("choice", ["the second one", None])
def test_a_scheduler_that_chooses_what_is_no_waiting_trial_is_told(tmp_path: Path, choice: str | None) -> None:
    class Chooses(FIFOScheduler):
        def choose_trial_to_run(self, controller: Controller) -> Any:
            return choice or Trial("4913f_00000", "other", str(tmp_path), "4913f")

    with pytest.raises(ConfigError, match=r"Chooses\.choose_trial_to_run\(\).*waiting_trials"):
        tuner(report_once, {}, scheduler=Chooses(), storage_path=str(tmp_path)).fit()
