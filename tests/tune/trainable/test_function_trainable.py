"""A function trainable as a class."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import tune
from paceline.air.errors import ConfigError
from paceline.tune.trainable import FunctionTrainable, wrap_function
from paceline.tune.trainable.kinds import kind_of
from tests.tune.trainable.one_trial import run_trial


def double(config: dict[str, Any], offset: int = 0) -> dict[str, Any]:
    return {"score": 2 * config["x"] + offset}


def test_a_wrapped_function_runs_as_the_function_does() -> None:
    wrapped = wrap_function(double, name="mine")
    assert issubclass(wrapped, FunctionTrainable)
    assert kind_of(wrapped).name == "mine"
    assert run_trial(wrapped, {"x": 3}).metrics["score"] == 6


def test_it_takes_parameters_and_resources() -> None:
    wrapped = wrap_function(double)
    assert run_trial(tune.with_parameters(wrapped, offset=1), {"x": 3}).metrics["score"] == 7
    assert kind_of(tune.with_resources(wrapped, {"cpu": 3})).resources({}).required_resources == {"CPU": 3}


def test_it_is_not_run_step_by_step() -> None:
    with pytest.raises(ConfigError, match=r"double.*Tuner"):
        wrap_function(double)({"x": 1}).train()
