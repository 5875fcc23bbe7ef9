"""Schedulers in real searches: decisions are carried out exactly, waiting trials keep their place, weights move."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sklearn  # noqa: F401  # PB2's model; it sets variables on import, which no test shall be blamed for

import paceline
from paceline import tune
from paceline.air import Checkpoint, ScalingConfig, session
from paceline.air.errors import ConfigError
from paceline.testing.chaos import Marks
from paceline.train import DataParallelTrainer
from paceline.tune.schedulers import (
    PB2,
    ASHAScheduler,
    DistributeResources,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    TrialScheduler,
)
from tests.tune.searching import column, config_of, search


@pytest.fixture(scope="module", autouse=True)
def two_cpus() -> Iterator[None]:
    paceline.shutdown()
    paceline.init(num_cpus=2)
    yield
    paceline.shutdown()


def climbing(marks: Marks, *, saves: bool, steps: int = 100) -> Any:
    """Scores `config["x"]` at each step; leaves word of a step before it is reported."""

    def train(config: dict[str, Any]) -> None:
        checkpoint = session.get_checkpoint()
        start = checkpoint.to_dict()["step"] if checkpoint else 0
        for step in range(start + 1, steps + 1):
            marks.say("step", step=step, trial=session.get_trial_id(), pid=os.getpid())
            saved = Checkpoint.from_dict({"step": step}) if saves else None
            session.report({"score": config["x"], "step": step}, checkpoint=saved)

    return train


def steps_taken(marks: Marks, result: Any) -> list[int]:
    return [mark["step"] for mark in marks.read("step", trial=result.metrics["trial_id"])]


def processes_of(marks: Marks, result: Any) -> int:
    return len({mark["pid"] for mark in marks.read("step", trial=result.metrics["trial_id"])})


# -- early stopping ---------------------------------------------------------------------------


def test_asha_stops_exactly_at_its_rungs(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    grid = search(
        climbing(marks, saves=False),
        {"x": tune.grid_search([5, 9, 1, 7, 2, 8, 3, 6, 4])},
        scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
        metric="score",
        mode="max",
    )
    taken = {config_of(result)["x"]: steps_taken(marks, result) for result in grid}
    for result in grid:
        steps = taken[config_of(result)["x"]]
        assert steps == column(result, "step") == list(range(1, len(steps) + 1))
        assert len(steps) in (1, 3, 9)
    assert len(taken[9]) == 9, "the best is never stopped before max_t"
    assert min(map(len, taken.values())) == 1
    assert grid.num_terminated == 9
    assert grid.get_best_result().metrics["score"] == 9


def test_the_median_rule_stops_what_is_below_the_median(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    rule = MedianStoppingRule(time_attr="training_iteration", grace_period=2, min_samples_required=2)
    grid = search(
        climbing(marks, saves=False, steps=5),
        {"x": tune.grid_search([5, 6, 1, 7])},
        scheduler=rule,
        metric="score",
        mode="max",
        max_concurrent_trials=1,
    )
    assert [steps_taken(marks, result) for result in grid] == [[1, 2, 3, 4, 5]] * 2 + [[1, 2]] + [[1, 2, 3, 4, 5]]
    assert [result.metrics["training_iteration"] for result in grid] == [5, 5, 2, 5]


# -- waiting ----------------------------------------------------------------------------------


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
    with pytest.raises(ConfigError, match=r"HyperBandScheduler lets train_\w+ wait.*Report a checkpoint with each row"):
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


# -- populations ------------------------------------------------------------------------------


def growing() -> Any:
    """A function whose weight grows by `lr` at each step; whoever trained a weight is written into it."""

    def train(config: dict[str, Any]) -> None:
        checkpoint = session.get_checkpoint()
        weight, trainers = checkpoint.to_dict()["state"] if checkpoint else (0.0, [])
        for _ in range(6):
            weight += config["lr"]
            trainers = [*trainers, session.get_trial_id()]
            state = Checkpoint.from_dict({"state": (weight, trainers)})
            session.report({"score": weight, "lr": config["lr"]}, checkpoint=state)

    return train


def takeovers_of(grid: Any) -> list[tuple[str, str, int, int, dict[str, Any], dict[str, Any]]]:
    text = Path(grid.experiment_path, "pbt_global.txt").read_text()
    return [tuple(json.loads(line)) for line in text.splitlines()]


def state_of(result: Any) -> tuple[float, list[str]]:
    weight, trainers = result.checkpoint.to_dict()["state"]
    return weight, trainers


def test_a_population_hands_weights_on_and_can_be_replayed() -> None:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": [1, 2, 3, 4]},
        resample_probability=0,
        synch=True,
    )
    grid = search(
        growing(),
        {"lr": tune.grid_search([1, 2, 3, 4])},
        scheduler=scheduler,
        metric="score",
        mode="max",
        stop={"training_iteration": 6},
    )
    assert [result.metrics["training_iteration"] for result in grid] == [6] * 4
    worst, best = grid[0], grid[3]
    ids = [result.metrics["trial_id"] for result in grid]
    first = takeovers_of(grid)[0]
    assert first == (ids[0], ids[3], 2, 2, {"lr": 4}, {"lr": 3})
    assert column(worst, "score")[:4] == [1, 2, 11, 14], "4 + 4 of the best, then its own steps of 3"
    assert column(worst, "lr")[:4] == [1, 1, 3, 3]
    assert column(worst, "training_iteration") == [1, 2, 3, 4, 5, 6]
    assert column(best, "score") == [4, 8, 12, 16, 20, 24]
    for result in grid:
        weight, trainers = state_of(result)
        assert weight == result.metrics["score"]
        assert len(trainers) == 6
    assert state_of(worst)[1][:2] == [ids[3]] * 2
    assert set(state_of(best)[1]) == {ids[3]}

    policy = Path(grid.experiment_path, f"pbt_policy_{ids[0]}.txt")
    replay = search(
        growing(), {"lr": 0}, scheduler=PopulationBasedTrainingReplay(policy), stop={"training_iteration": 6}
    )
    assert len(replay) == 1
    assert column(replay[0], "score")[:4] == [4, 8, 11, 14]
    assert state_of(replay[0])[0] == state_of(worst)[0]
    assert config_of(replay[0])["lr"] == config_of(worst)["lr"]


def test_a_population_of_a_class_that_takes_turns() -> None:
    """Nobody waits for the others: more trials than fit at once take turns, saved by the search's own wish."""

    class Growing(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.weight, self.trainers = 0.0, [self.trial_id]

        def step(self) -> dict[str, Any]:
            self.weight += self.config["lr"]
            return {"score": self.weight}

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return {"weight": self.weight, "trainers": self.trainers}

        def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.weight = checkpoint["weight"]
            trainers = checkpoint["trainers"]
            self.trainers = trainers if trainers[-1] == self.trial_id else [*trainers, self.trial_id]

    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": tune.uniform(1, 10)},
        quantile_fraction=0.5,
    )
    grid = search(
        Growing,
        {"lr": tune.grid_search([1.0, 1.1, 9.0, 10.0])},
        scheduler=scheduler,
        metric="score",
        mode="max",
        stop={"training_iteration": 8},
    )
    assert [result.metrics["training_iteration"] for result in grid] == [8] * 4
    takeovers = takeovers_of(grid)
    assert takeovers
    last = {trial: donor for trial, donor, *_ in takeovers}
    for result in grid:
        assert result.checkpoint is not None
        trainers = result.checkpoint.to_dict()["trainers"]
        trial_id = result.metrics["trial_id"]
        assert trainers[-1] == trial_id
        assert len(trainers) == 1 or trial_id in last
        if trial_id in last:
            assert trainers[-2] == last[trial_id]
    changed = {trial for trial, *_ in takeovers}
    assert all(1 <= config_of(result)["lr"] <= 10 for result in grid)
    for result in grid:
        if result.metrics["trial_id"] not in changed:
            assert config_of(result)["lr"] in (1.0, 1.1, 9.0, 10.0)


def test_pb2_keeps_to_its_bounds() -> None:
    scheduler = PB2(
        time_attr="training_iteration",
        perturbation_interval=1,
        hyperparam_bounds={"lr": [0.5, 2.0]},
        quantile_fraction=0.5,
        synch=True,
    )
    grid = search(
        growing(),
        {"lr": tune.grid_search([0.5, 1.0, 1.5, 2.0])},
        scheduler=scheduler,
        metric="score",
        mode="max",
        stop={"training_iteration": 4},
    )
    takeovers = takeovers_of(grid)
    assert len(takeovers) == 6, "half of the trials at each of three turns"
    assert all(0.5 <= new["lr"] <= 2.0 for *_, new in takeovers)
    for result in grid:
        weight, trainers = state_of(result)
        assert (weight, len(trainers)) == (result.metrics["score"], 4)
        assert config_of(result)["lr"] == column(result, "lr")[-1]


# -- resources --------------------------------------------------------------------------------


def test_the_last_trial_gets_the_whole_machine(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")

    def train(config: dict[str, Any]) -> None:
        checkpoint = session.get_checkpoint()
        start = checkpoint.to_dict()["step"] if checkpoint else 0
        for step in range(start + 1, 7):
            if config["short"] and step == 3:
                marks.wait("two rows are decided")
                return
            if step == 3:
                marks.say("two rows are decided")
                marks.pass_gate("short one is over")
            resources = session.get_trial_resources()
            assert resources is not None
            cpus = resources.required_resources["CPU"]
            session.report({"step": step, "cpus": cpus}, checkpoint=Checkpoint.from_dict({"step": step}))

    class OpensGate(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            marks.open_gate("short one is over")

    grid = search(
        train,
        {"short": tune.grid_search([True, False])},
        scheduler=ResourceChangingScheduler(resources_allocation_function=DistributeResources()),
        callbacks=[OpensGate()],
    )
    assert column(grid[0], "cpus") == [1, 1]
    assert column(grid[1], "step") == [1, 2, 3, 4, 5, 6], "each step once, whatever it was started with"
    assert column(grid[1], "cpus") == [1, 1, 1, 2, 2, 2]


# -- schedulers of one's own ------------------------------------------------------------------


def test_a_scheduler_of_ones_own_says_when_to_stop(tmp_path: Path) -> None:
    class AtItsNumber(TrialScheduler):
        def on_trial_result(self, controller: Any, trial: Any, result: Any) -> str:
            return self.STOP if result["step"] >= trial.config["x"] else self.CONTINUE

    marks = Marks(tmp_path / "marks")
    grid = search(climbing(marks, saves=False), {"x": tune.grid_search([1, 2, 3])}, scheduler=AtItsNumber())
    assert [steps_taken(marks, result) for result in grid] == [[1], [1, 2], [1, 2, 3]]
