"""The guides' tuning example, ported by replacing the package's name, and what ported tuning code looks like."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import tune
from paceline.air import ScalingConfig, session
from paceline.train.torch import TorchTrainer
from paceline.tune.tuner import TuneConfig, Tuner
from tests.tune.searching import config_of


def train_func(config: dict[str, Any]) -> None:
    # In this example, nothing is expected to change over epochs,
    # and the output metric is equivalent to the input value.
    for _ in range(config["num_epochs"]):
        session.report(dict(output=config["input"]))  # noqa: C408  (as the guide has it)


def test_the_tuning_example(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2))
    tuner = Tuner(
        trainer,
        param_space={
            "train_loop_config": {
                "num_epochs": 2,
                "input": tune.grid_search([1, 2, 3]),
            }
        },
        tune_config=TuneConfig(num_samples=5, metric="output", mode="max"),
    )
    result_grid = tuner.fit()
    capsys.readouterr()
    print(result_grid.get_best_result().metrics["output"])
    assert capsys.readouterr().out == "3\n"

    assert len(result_grid) == 15
    assert result_grid.num_terminated == 15
    inputs = [config_of(result)["train_loop_config"]["input"] for result in result_grid]
    assert inputs == [1, 2, 3] * 5
    assert [result.metrics["output"] for result in result_grid] == inputs
    assert {result.metrics["training_iteration"] for result in result_grid} == {2}
    frame = result_grid.get_dataframe()
    assert list(frame["config/train_loop_config/input"]) == inputs
    assert list(frame["output"]) == inputs
