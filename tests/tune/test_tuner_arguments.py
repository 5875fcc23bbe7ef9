"""Arguments that a Tuner refuses, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import RunConfig
from paceline.air.errors import ConfigError
from paceline.tune import Tuner


def train(config: dict[str, Any]) -> None: ...


def test_nothing_to_run_and_nonsense_are_refused_before_anything_starts(results_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"Tuner.*a function.*a trainer"):
        Tuner()
    with pytest.raises(ConfigError, match=r"tune_config.*TuneConfig.*RunConfig"):
        Tuner(train, tune_config=RunConfig())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"param_space.*dict.*\[1\]"):
        Tuner(train, param_space=[1])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"fit\(\)"):
        Tuner(train).get_results()
    assert not results_dir.exists()


def test_a_domain_that_was_not_called_is_refused_when_the_tuner_is_made() -> None:
    with pytest.raises(ConfigError, match=r"'x'.*tune\.uniform\("):
        Tuner(train, param_space={"x": tune.uniform})


def test_a_class_without_step_is_refused_when_the_tuner_is_made() -> None:
    class Stepless(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.x = 1

    with pytest.raises(ConfigError, match=r"Stepless.*step"):
        Tuner(Stepless)


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        ("config", r"param_space\?"),
        ("param_spac", r"param_space\?"),
        ("num_samples", r"tune_config=TuneConfig\(num_samples="),
        ("stop", r"run_config=RunConfig\(stop="),
    ],
)
def test_an_argument_that_a_tuner_does_not_have_is_answered_with_the_right_one(wrong: str, answer: str) -> None:
    with pytest.raises(TypeError, match=rf"^Tuner\(\).*'{wrong}'.*{answer}"):
        Tuner(train, **{wrong: {}})


def test_an_argument_that_restore_does_not_have_is_answered_with_the_right_one() -> None:
    with pytest.raises(TypeError, match=r"^Tuner.restore\(\).*'restart_error'.*restart_errored"):
        Tuner.restore("somewhere", train, restart_error=True)  # type: ignore[call-arg]
