"""Schedulers in real searches: decisions are carried out exactly, and weights move."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sklearn  # noqa: F401  # PB2's model; it sets variables on import, which no test shall be blamed for

from paceline import tune
from paceline.air import Checkpoint, RunConfig, session
from paceline.air.errors import ConfigError
from paceline.testing.processes import Marks
from paceline.tune import TuneConfig, Tuner
from paceline.tune.schedulers import (
    PB2,
    ASHAScheduler,
    DistributeResources,
    MedianStoppingRule,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    Restart,
    TrialScheduler,
)
from tests.tune.searching import climbing, column, config_of, search, steps_taken

pytestmark = pytest.mark.usefixtures("two_cpus")


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


def population(**settings: Any) -> PopulationBasedTraining:
    return PopulationBasedTraining(
        "training_iteration", perturbation_interval=3, hyperparam_mutations={"x": tune.uniform(0, 1)}, **settings
    )


@pytest.mark.parametrize("synch", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_row_after_the_one_that_says_done(tmp_path: Path, synch: bool) -> None:
    class Nine(tune.Trainable):
        """Says after nine steps that it is done."""

        def setup(self, config: dict[str, Any]) -> None:
            self.steps, self.weight = 0, 0.0

        def step(self) -> dict[str, Any]:
            self.steps += 1
            self.weight += self.config["x"]
            return {"steps": self.steps, "weight": self.weight, "done": self.steps >= 9}

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return {"steps": self.steps, "weight": self.weight}

        def load_checkpoint(self, checkpoint: Any) -> None:
            self.steps, self.weight = checkpoint["steps"], checkpoint["weight"]

    results = Tuner(
        Nine,
        param_space={"x": tune.grid_search([0.1, 0.9, 0.5, 0.3])},
        tune_config=TuneConfig(metric="weight", mode="min", scheduler=population(synch=synch)),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert not results.errors
    for result in results:
        assert result.metrics_dataframe is not None
        done = list(result.metrics_dataframe["done"])
        assert done[-1]
        assert sum(done) == 1


def test_metrics_and_checkpoint_are_of_the_same_state(tmp_path: Path) -> None:
    """A trial that takes over a state which is already at its end reports no row of its own any more."""

    def train(config: dict[str, Any]) -> None:
        checkpoint = session.get_checkpoint()
        state = checkpoint.to_dict() if checkpoint else {"step": 0, "who": config["x"]}
        for step in range(state["step"], 6):
            saved = Checkpoint.from_dict({"step": step + 1, "who": state["who"]})
            session.report({"loss": state["who"]}, checkpoint=saved)

    results = Tuner(
        train,
        param_space={"x": tune.grid_search([0.9, 0.8, 0.7, 0.1])},
        tune_config=TuneConfig(metric="loss", mode="min", scheduler=population()),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    for result in results:
        assert result.checkpoint is not None
        assert result.metrics["loss"] == result.checkpoint.to_dict()["who"]


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


def test_a_scheduler_may_change_the_trial_that_it_chooses() -> None:
    class ChangesWhatWaited(TrialScheduler):
        def on_trial_result(self, controller: Any, trial: Any, result: Any) -> str:
            return self.PAUSE if result["training_iteration"] == 1 else self.CONTINUE

        def choose_trial_to_run(self, controller: Any) -> Any:
            chosen = next(iter(controller.waiting_trials()), None)
            if chosen is not None and chosen.status == "PAUSED":
                controller.restart_trial(chosen, Restart(config={**chosen.config, "x": 99}))
            return chosen

    def train(config: dict[str, Any]) -> None:
        checkpoint = session.get_checkpoint()
        for step in range(checkpoint.to_dict()["step"] + 1 if checkpoint else 1, 3):
            session.report({"x": config["x"]}, checkpoint=Checkpoint.from_dict({"step": step}))

    grid = search(train, {"x": 1}, scheduler=ChangesWhatWaited(), engine="inline")
    assert column(grid[0], "x") == [1, 99]


def test_a_scheduler_cannot_run_a_trial_that_it_stops() -> None:
    class StopsWhatItChooses(TrialScheduler):
        def choose_trial_to_run(self, controller: Any) -> Any:
            chosen = next(iter(controller.waiting_trials()), None)
            if chosen is not None:
                controller.stop_trial(chosen)
            return chosen

    with pytest.raises(ConfigError, match=r"choose_trial_to_run\(\) returned .*: return one of"):
        search(lambda config: None, {"x": 1}, scheduler=StopsWhatItChooses(), engine="inline")
