"""Slips of the pen in a Tuner's arguments, and names that mean more than one thing."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import tune
from paceline.air.errors import ConfigError
from paceline.tune import Tuner
from paceline.tune.search import HyperOptSearch, OptunaSearch, Searcher
from tests.tune.searching import config_of, search


def distance(config: dict[str, Any]) -> dict[str, float]:
    return {"loss": (config["opt/lr"] - 0.3) ** 2 + config["net"]["size/x"]}


@pytest.mark.parametrize(
    "searcher",
    [OptunaSearch(seed=0, sampler="random"), HyperOptSearch(random_state_seed=0)],
    ids=lambda s: type(s).__name__,
)
def test_a_key_with_a_slash_gets_the_value_that_was_suggested(searcher: Searcher) -> None:
    space = {"opt/lr": tune.uniform(0, 1), "net": {"size/x": tune.randint(0, 5), "depth": tune.choice([1, 2])}}
    grid = search(distance, space, search_alg=searcher, metric="loss", mode="min", num_samples=3)
    for result, outcome in zip(grid, grid.outcomes, strict=True):
        config = config_of(result)
        assert set(config) == {"opt/lr", "net"}
        assert set(config["net"]) == {"size/x", "depth"}
        assert config["opt/lr"] == outcome.trial.evaluated_params["opt/lr"]
    if isinstance(searcher, OptunaSearch):
        learnt = [(trial.params["opt/lr"], trial.value) for trial in searcher.study.trials]
        assert learnt == [(config_of(result)["opt/lr"], result.metrics["loss"]) for result in grid]


def test_a_domain_that_was_not_called_is_refused_when_the_tuner_is_made() -> None:
    with pytest.raises(ConfigError, match=r"'x' is the function tune\.uniform itself"):
        Tuner(distance, param_space={"x": tune.uniform})


def test_a_class_without_step_is_refused_when_the_tuner_is_made() -> None:
    class Stepless(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.x = 1

    with pytest.raises(ConfigError, match="Stepless must define step"):
        Tuner(Stepless)


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        ("config", "did you mean param_space"),
        ("param_spac", "did you mean param_space"),
        ("num_samples", r"write tune_config=TuneConfig\(num_samples=...\)"),
        ("stop", r"write run_config=RunConfig\(stop=...\)"),
    ],
)
def test_an_argument_that_a_tuner_does_not_have_is_answered_with_the_right_one(wrong: str, answer: str) -> None:
    with pytest.raises(TypeError, match=rf"^Tuner\(\) has no argument '{wrong}': {answer}"):
        Tuner(distance, **{wrong: {}})


def test_an_argument_that_restore_does_not_have_is_answered_with_the_right_one() -> None:
    with pytest.raises(
        TypeError, match=r"^Tuner.restore\(\) has no argument 'restart_error': did you mean restart_errored"
    ):
        Tuner.restore("somewhere", distance, restart_error=True)  # type: ignore[call-arg]
