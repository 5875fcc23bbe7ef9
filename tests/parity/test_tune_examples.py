"""The guides' tuning example, ported by replacing the package's name, and what ported tuning code looks like."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from paceline import tune
from paceline.air import RunConfig, ScalingConfig, session
from paceline.train.torch import TorchTrainer
from paceline.tune.logger import LoggerCallback
from paceline.tune.tuner import TuneConfig, Tuner
from tests.tune.searching import config_of

KEYS = (
    *("epoch", "_timestamp", "_time_this_iter_s", "_training_iteration", "time_this_iter_s", "done"),
    *("timesteps_total", "episodes_total", "training_iteration", "trial_id", "experiment_id", "date", "timestamp"),
    *("time_total_s", "pid", "hostname", "node_ip", "config", "time_since_restore", "timesteps_since_restore"),
    *("iterations_since_restore", "warmup_time", "experiment_tag"),
)


@pytest.mark.parametrize("num_samples", [1, pytest.param(5, marks=pytest.mark.slow)])  # the guide's: 5
def test_the_tuning_example(num_samples: int, capsys: pytest.CaptureFixture[str]) -> None:
    def train_func(config: dict[str, Any]) -> None:
        # In this example, nothing is expected to change over epochs,
        # and the output metric is equivalent to the input value.
        for _ in range(config["num_epochs"]):
            session.report(dict(output=config["input"]))  # noqa: C408  (as the guide has it)

    trainer = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2))
    tuner = Tuner(
        trainer,
        param_space={
            "train_loop_config": {
                "num_epochs": 2,
                "input": tune.grid_search([1, 2, 3]),
            }
        },
        tune_config=TuneConfig(num_samples=num_samples, metric="output", mode="max"),
    )
    result_grid = tuner.fit()
    capsys.readouterr()
    print(result_grid.get_best_result().metrics["output"])
    assert capsys.readouterr().out == "3\n"

    assert len(result_grid) == result_grid.num_terminated == 3 * num_samples
    inputs = [config_of(result)["train_loop_config"]["input"] for result in result_grid]
    assert inputs == [1, 2, 3] * num_samples
    assert [result.metrics["output"] for result in result_grid] == inputs
    assert {result.metrics["training_iteration"] for result in result_grid} == {2}
    frame = result_grid.get_dataframe()
    assert list(frame["config/train_loop_config/input"]) == inputs
    assert list(frame["output"]) == inputs


def test_the_sketch_of_a_search_over_samples() -> None:
    """The guides have it in a comment; there `tune.uniform` and `tune.randint` still lack their bounds."""

    def training_func(config: dict[str, Any]) -> None:
        for i in range(2):
            session.report({"epoch": i, "rows": config["batch_size"] * i})

    tuner = tune.Tuner(
        training_func,
        param_space={"lr": tune.uniform(0, 1), "batch_size": tune.randint(1, 3)},
        tune_config=tune.TuneConfig(num_samples=12),
        run_config=RunConfig(verbose=0),
    )
    results = tuner.fit()
    assert len(results) == 12
    assert len({config_of(result)["lr"] for result in results}) == 12
    assert {config_of(result)["batch_size"] for result in results} == {1, 2}


def test_callbacks_and_rows_of_a_search() -> None:
    """A callback sees the row before in `trial.last_result`; rows have the keys that the guides print."""

    class LoggingCallback(LoggerCallback):
        def __init__(self) -> None:
            self.results: list[dict[str, Any]] = []

        def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
            self.results.append(trial.last_result)

    def train_func(config: dict[str, Any]) -> None:
        for i in range(3):
            session.report({"epoch": i})

    callback = LoggingCallback()
    tuner = Tuner(
        train_func,
        param_space={"lr": tune.grid_search([0.1])},
        run_config=RunConfig(callbacks=[callback], verbose=0),
    )
    result = tuner.fit()[0]
    assert [row.get("epoch") for row in callback.results] == [None, 0, 1]
    assert set(KEYS) <= set(result.metrics)
    assert result.metrics["config"] == {"lr": 0.1}
    assert result.metrics["experiment_tag"] == "0_lr=0.1"
    assert result.metrics["done"] is True
    assert result.metrics["trial_id"].endswith("_00000")
    assert result.metrics["training_iteration"] == result.metrics["iterations_since_restore"] == 3


@pytest.mark.parametrize(
    "path",
    [
        "tune.Tuner",
        "tune.TuneConfig",
        "tune.ResultGrid",
        "tune.run",
        "tune.Callback",
        "tune.callback.Callback",
        "tune.logger.LoggerCallback",
        "tune.logger.TBXLoggerCallback",
        "tune.tuner.TuneConfig",
        "tune.schedulers.ASHAScheduler",
        "tune.schedulers.PopulationBasedTraining",
        "tune.search.ConcurrencyLimiter",
        "tune.search.optuna.OptunaSearch",
        "tune.search.hyperopt.HyperOptSearch",
        "tune.search.basic_variant.BasicVariantGenerator",
        "tune.stopper.TrialPlateauStopper",
        "tune.CLIReporter",
        "tune.PlacementGroupFactory",
    ],
)
def test_names_that_ported_code_imports(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert hasattr(importlib.import_module(f"paceline.{module}"), name)
