"""Searchers in real searches: what they suggest is what runs, and what trials reach is what they learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from paceline import tune
from paceline.air import ScalingConfig, session
from paceline.air.errors import ConfigError
from paceline.testing.processes import Marks
from paceline.train import DataParallelTrainer
from paceline.tune.schedulers import ASHAScheduler
from paceline.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    Repeater,
    Searcher,
)
from paceline.tune.search.hyperopt import HyperOptSearch
from paceline.tune.search.optuna import OptunaSearch
from tests.tune.searching import Overlap, config_of, search, tuner

LOSS: dict[str, Any] = {"metric": "loss", "mode": "min"}


def parabola() -> Any:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"loss": (config["x"] - 3) ** 2}

    return train


def xs(grid: Any) -> list[float]:
    return [config_of(result)["x"] for result in grid]


# -- Optuna and HyperOpt ----------------------------------------------------------------------


@pytest.mark.parametrize(("searcher_class", "seed"), [(OptunaSearch, "seed"), (HyperOptSearch, "random_state_seed")])
def test_a_model_repeats_itself_and_learns_from_what_trials_reach(searcher_class: Any, seed: str) -> None:
    """The first suggestions are random, of the seed; later ones depend on where the loss was small."""

    def tried(best_x: float) -> list[float]:
        def train(config: dict[str, Any]) -> dict[str, Any]:
            return {"loss": abs(config["x"] - best_x), "same": config["constant"]}

        grid = search(
            train,
            {"x": tune.uniform(-10, 10), "constant": "c"},
            search_alg=searcher_class(**{seed: 1}),
            num_samples=24,
            max_concurrent_trials=1,
            engine="inline",
            **LOSS,
        )
        assert {result.metrics["same"] for result in grid} == {"c"}
        return xs(grid)

    right, again, left = tried(3), tried(3), tried(-3)
    assert right == again
    assert right[:10] == left[:10]
    assert right[20:] != left[20:]


def test_the_study_knows_each_trial_with_its_value() -> None:
    searcher = OptunaSearch(seed=3)
    grid = search(parabola(), {"x": tune.uniform(0, 6)}, search_alg=searcher, num_samples=6, engine="inline", **LOSS)
    trials = searcher.study.trials
    assert [trial.params["x"] for trial in trials] == xs(grid)
    assert [trial.value for trial in trials] == [result.metrics["loss"] for result in grid]
    assert searcher.study.best_value == grid.get_best_result().metrics["loss"]


def test_failed_trials_are_not_learnt_from() -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        if config["x"] > 3:
            raise ValueError("too large")
        return {"loss": config["x"]}

    searcher = OptunaSearch(seed=0, sampler="random")
    grid = tuner(train, {"x": tune.uniform(0, 6)}, search_alg=searcher, num_samples=8, **LOSS).fit()
    assert 0 < grid.num_errors < 8
    for trial, result in zip(searcher.study.trials, grid, strict=True):
        failed = result.error is not None
        assert (trial.state is optuna.trial.TrialState.FAIL) == failed
    assert grid.get_best_result().metrics["loss"] == searcher.study.best_value


def test_a_space_of_ones_own_with_conditions() -> None:
    def space(trial: Any) -> dict[str, Any]:
        kind = trial.suggest_categorical("kind", ["linear", "forest"])
        if kind == "forest":
            trial.suggest_int("trees", 1, 10)
        return {"fixed": 7}

    def train(config: dict[str, Any]) -> dict[str, Any]:
        assert ("trees" in config) == (config["kind"] == "forest")
        return {"score": config["fixed"] + config.get("trees", 0)}

    searcher = OptunaSearch(space, seed=1)
    grid = search(train, search_alg=searcher, num_samples=8, engine="inline", metric="score", mode="max")
    assert {config_of(result)["kind"] for result in grid} == {"linear", "forest"}
    assert grid.get_best_result().metrics["score"] == 7 + max(config_of(result).get("trees", 0) for result in grid)


def test_several_goals() -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"error": config["x"], "cost": 10 - config["x"]}

    searcher = OptunaSearch(metric=["error", "cost"], mode=["min", "min"], seed=1)
    grid = search(train, {"x": tune.uniform(0, 10)}, search_alg=searcher, num_samples=6, engine="inline")
    assert len(searcher.study.best_trials) == 6, "each is a compromise"
    assert grid.get_best_result("cost", "min").metrics["cost"] == min(result.metrics["cost"] for result in grid)


def test_points_to_begin_with_and_trainers() -> None:
    def train(config: dict[str, Any]) -> None:
        session.report({"loss": abs(config["x"] - 3) + config["layers"]})

    points = [{"train_loop_config": {"x": 3.0, "layers": 1}}]
    trainer = DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=1))
    space = {"train_loop_config": {"x": tune.uniform(0, 6), "layers": tune.choice([1, 2])}}
    grid = search(trainer, space, search_alg=OptunaSearch(points_to_evaluate=points, seed=1), num_samples=4, **LOSS)
    assert config_of(grid[0])["train_loop_config"] == {"x": 3.0, "layers": 1}
    assert config_of(grid.get_best_result()) == config_of(grid[0])


def test_a_model_with_early_stopping() -> None:
    def train(config: dict[str, Any]) -> None:
        for step in range(1, 10):
            session.report({"loss": abs(config["x"] - 3) + 1 / step})

    searcher = OptunaSearch(seed=1)
    asha = ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    grid = search(train, {"x": tune.uniform(0, 6)}, search_alg=searcher, scheduler=asha, num_samples=12, **LOSS)
    lengths = [result.metrics["training_iteration"] for result in grid]
    assert set(lengths) <= {1, 3, 9}
    assert 9 in lengths
    assert 1 in lengths
    told = [trial.value for trial in searcher.study.trials]
    assert told == [result.metrics["loss"] for result in grid]


@pytest.mark.parametrize(
    "searcher",
    [OptunaSearch(seed=0, sampler="random"), HyperOptSearch(random_state_seed=0)],
    ids=lambda s: type(s).__name__,
)
def test_a_key_with_a_slash_gets_the_value_that_was_suggested(searcher: Searcher) -> None:
    def distance(config: dict[str, Any]) -> dict[str, float]:
        return {"loss": (config["opt/lr"] - 0.3) ** 2 + config["net"]["size/x"]}

    space = {"opt/lr": tune.uniform(0, 1), "net": {"size/x": tune.randint(0, 5), "depth": tune.choice([1, 2])}}
    grid = search(distance, space, search_alg=searcher, metric="loss", mode="min", num_samples=3, engine="inline")
    for result, outcome in zip(grid, grid.outcomes, strict=True):
        config = config_of(result)
        assert set(config) == {"opt/lr", "net"}
        assert set(config["net"]) == {"size/x", "depth"}
        assert config["opt/lr"] == outcome.trial.evaluated_params["opt/lr"]
    if isinstance(searcher, OptunaSearch):
        learnt = [(trial.params["opt/lr"], trial.value) for trial in searcher.study.trials]
        assert learnt == [(config_of(result)["opt/lr"], result.metrics["loss"]) for result in grid]


# -- wrappers ---------------------------------------------------------------------------------


def test_a_limiter_lets_only_so_many_be_under_way(tmp_path: Path) -> None:
    overlap = Overlap(tmp_path / "marks")

    def train(config: dict[str, Any]) -> dict[str, Any]:
        overlap.enter()
        session.report({"loss": config["x"]})
        overlap.leave()
        return {"loss": config["x"]}

    small = tune.with_resources(train, {"CPU": 0.1})
    limited = ConcurrencyLimiter(OptunaSearch(seed=1), max_concurrent=1)
    grid = search(small, {"x": tune.uniform(0, 1)}, search_alg=limited, num_samples=5, **LOSS)
    assert len(grid) == 5
    assert overlap.most == 1


def test_repetitions_are_told_as_their_mean() -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"loss": config["x"] + config["__trial_index__"]}

    inner = OptunaSearch(seed=1)
    grid = search(
        train, {"x": tune.uniform(0, 1)}, search_alg=Repeater(inner, repeat=3), num_samples=6, engine="inline", **LOSS
    )
    values = xs(grid)
    assert values == [values[0]] * 3 + [values[3]] * 3
    assert [trial.value for trial in inner.study.trials] == pytest.approx([values[0] + 1, values[3] + 1])


# -- grids, samples, and searchers of one's own -------------------------------------------------


def test_points_then_samples_of_a_seed() -> None:
    space = {"x": tune.uniform(0, 1), "y": tune.grid_search([1, 2])}
    first, second = (
        search(
            lambda config: {"loss": 0},
            space,
            search_alg=BasicVariantGenerator(points_to_evaluate=[{"x": 0.5, "y": 2}], random_state=7),
            num_samples=3,
            engine="inline",
        )
        for _ in range(2)
    )
    assert config_of(first[0]) == {"x": 0.5, "y": 2}
    assert [config_of(result) for result in first] == [config_of(result) for result in second]


def test_dependent_values_and_nested_spaces() -> None:
    space = {
        "model": {"layers": tune.grid_search([1, 2]), "width": tune.randint(8, 16)},
        "units": tune.sample_from(lambda spec: spec.config.model.layers * spec.config.model.width),
        "pair": [tune.uniform(0, 1), "second"],
    }

    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"units": config["units"], "second": config["pair"][1]}

    grid = search(train, space, num_samples=2, engine="inline")
    assert len(grid) == 4
    for result in grid:
        model = config_of(result)["model"]
        assert result.metrics["units"] == model["layers"] * model["width"]
        assert result.metrics["second"] == "second"


class Halving(Searcher):
    """Asks once more only after it has heard of the trial before; ends by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 8.0
        self.open: str | None = None
        self.heard: list[tuple[float, bool]] = []

    def suggest(self, trial_id: str) -> Any:
        if self.open is not None:
            return None
        if self.width < 1:
            return self.FINISHED
        self.open = trial_id
        return {"x": self.width}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        assert trial_id == self.open
        self.open = None
        self.width /= 2
        self.heard.append((result["loss"] if result else -1.0, error))


def test_a_searcher_of_ones_own_may_wait_and_may_end() -> None:
    searcher = Halving()
    grid = search(lambda config: {"loss": config["x"], "k": config["k"]}, {"k": 1}, search_alg=searcher, num_samples=-1)
    assert xs(grid) == [8, 4, 2, 1]
    assert searcher.heard == [(8, False), (4, False), (2, False), (1, False)]
    assert {result.metrics["k"] for result in grid} == {1}


def test_a_searcher_that_raises_ends_the_search_with_its_own_error(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")

    class Broken(Searcher):
        def suggest(self, trial_id: str) -> Any:
            if trial_id.endswith("2"):
                raise ZeroDivisionError("in the searcher")
            return {"x": 1}

    def train(config: dict[str, Any]) -> dict[str, Any]:
        marks.say("began")
        return {"loss": 1}

    with pytest.raises(ZeroDivisionError, match="in the searcher"):
        tuner(train, {}, search_alg=Broken(), num_samples=5, max_concurrent_trials=1).fit()
    assert len(marks.read("began")) == 2


class HasNothing(Searcher):
    """Suggests nothing for a while, and then that it is done."""

    asked = 0

    def suggest(self, trial_id: str) -> Any:
        self.asked += 1
        return None if self.asked < 4 else self.FINISHED


def test_searcher_that_waits_for_nothing_is_told_of(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.tune.experiment.starting.IDLE_S", 0.0)
    search = tuner(
        lambda config: {"loss": 1.0}, {}, num_samples=2, search_alg=HasNothing(), storage_path=str(tmp_path), verbose=1
    )
    assert len(search.fit()) == 0
    assert "HasNothing" in "".join(capfd.readouterr())


def test_goals_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"search_alg.*'a'"):
        tuner(parabola(), {"x": tune.uniform(0, 1)}, search_alg=OptunaSearch(metric="a", mode="min"), **LOSS).fit()
    with pytest.raises(ConfigError, match=r"scheduler.*'a'"):
        tuner(parabola(), {"x": 1}, scheduler=ASHAScheduler(metric="a", mode="min"), **LOSS).fit()
    with pytest.raises(ConfigError, match=r"Scheduler.*no metric.*TuneConfig\(metric="):
        tuner(parabola(), {"x": 1}, scheduler="asha").fit()
