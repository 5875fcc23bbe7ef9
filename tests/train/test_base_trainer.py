"""A trainer of the user's own: its methods run in one worker process."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import paceline.air.base_trainer
import paceline.train.trainer
from paceline import data
from paceline.air import Checkpoint, FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, TrainingFailedError
from paceline.data.preprocessors import MinMaxScaler
from paceline.run.callbacks import Callback
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.train import BaseTrainer

QUIET = RunConfig(verbose=0)


class NotingTrainer(BaseTrainer):
    """Notes in which order its methods are called, and where."""

    def __init__(self, factor: int = 1, **arguments: Any) -> None:
        super().__init__(**{"run_config": QUIET, **arguments})
        self.factor = factor
        self.notes: list[str] = []

    def setup(self) -> None:
        self.notes.append("setup")

    def preprocess_datasets(self) -> None:
        self.notes.append("preprocess_datasets")

    def training_loop(self) -> None:
        newest = session.get_checkpoint()
        for step in range(newest.to_dict()["step"] + 1 if newest else 0, 3):
            metrics = {"step": step, "value": step * self.factor, "notes": list(self.notes), "pid": os.getpid()}
            session.report(metrics, checkpoint=Checkpoint.from_dict({"step": step}))


def test_its_methods_run_in_one_worker_in_order(results_dir: Path) -> None:
    trainer = NotingTrainer(factor=5)
    result = trainer.fit()
    check_run(result.path, result=result, iterations=3, attempts=1)
    assert result.metrics["notes"] == ["setup", "preprocess_datasets"]
    assert result.metrics["value"] == 10
    assert result.metrics["pid"] != os.getpid()
    assert result.metrics["config"] == {}
    assert trainer.notes == []  # what the worker did stayed there
    assert list(result.rank_metrics) == [0]
    assert Path(result.path).name.startswith("NotingTrainer_")


def test_it_retries_stops_resumes_and_restores_like_any_other(tmp_path: Path) -> None:
    class Flaky(NotingTrainer):
        def setup(self) -> None:
            super().setup()
            if session.get_checkpoint() is None and not Marks(tmp_path / "marks").claim("first"):
                raise AssertionError("the checkpoint was lost")

        def training_loop(self) -> None:
            super().training_loop()
            if Marks(tmp_path / "marks").claim("failure"):
                raise ValueError("once")
            session.report({"step": 3})

    result = Flaky(run_config=RunConfig(failure_config=FailureConfig(max_failures=1), verbose=0)).fit()
    check_run(result.path, result=result, iterations=4, attempts=2)
    inline = RunConfig(stop={"step": 1}, verbose=0, engine="inline")
    stopped = NotingTrainer(run_config=inline).fit()
    assert stopped.metrics["step"] == 1
    resumed = NotingTrainer(run_config=replace(inline, stop=None), resume_from_checkpoint=stopped.checkpoint).fit()
    assert resumed.metrics_dataframe["step"].tolist() == [2]
    assert NotingTrainer.can_restore(result.path)
    again = Flaky.restore(result.path).fit()
    assert again.metrics == result.metrics


def test_an_error_in_a_method_is_the_runs_error() -> None:
    class Broken(NotingTrainer):
        def preprocess_datasets(self) -> None:
            raise ValueError("bad data")

    with pytest.raises(TrainingFailedError, match="bad data") as caught:
        Broken().fit()
    assert isinstance(caught.value.__cause__, ValueError)
    assert "in preprocess_datasets" in str(caught.value)


def test_without_a_training_loop() -> None:
    class Empty(BaseTrainer):
        pass

    with pytest.raises(TrainingFailedError, match=r"Empty.*training_loop"):
        Empty(run_config=RunConfig(verbose=0, engine="inline")).fit()


def test_callbacks_stay_in_the_driver() -> None:
    class Holding(Callback):
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.steps: list[int] = []

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            self.steps.append(result["step"])

    holding = Holding()
    NotingTrainer(run_config=RunConfig(callbacks=[holding], verbose=0)).fit()
    assert holding.steps == [0, 1, 2]


def test_several_workers_need_the_other_trainer() -> None:
    assert NotingTrainer(scaling_config=ScalingConfig(num_workers=1)).to_run_spec().max_workers == 1
    problem = r"NotingTrainer does not support elastic num_workers=\(1, 2\): it runs in one process"
    with pytest.raises(ConfigError, match=problem):
        NotingTrainer(scaling_config=ScalingConfig(num_workers=(1, 2)))
    with pytest.raises(ConfigError, match=r"num_workers=2.*DataParallelTrainer"):
        NotingTrainer(scaling_config=ScalingConfig(num_workers=2)).to_run_spec()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"datasets": {"train": [1]}}, r"datasets\['train'\].*Dataset.*\blist\b"),
        ({"datasets": {1: data.range(3)}}, r"datasets.*\b1\b"),
        ({"preprocessor": object()}, r"preprocessor.*Preprocessor.*\bobject\b"),
    ],
)
def test_what_can_be_no_dataset_or_preprocessor(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NotingTrainer(**arguments)


class Summing(BaseTrainer):
    def training_loop(self) -> None:
        sums = {f"sum_{name}": dataset.sum("x") for name, dataset in self.datasets.items()}
        session.report(sums, checkpoint=Checkpoint.from_dict({}))


def test_datasets_are_preprocessed_before_the_loop() -> None:
    rows = {"train": data.from_items([{"x": 0.0}, {"x": 4.0}]), "valid": lambda: data.from_items([{"x": 8.0}])}
    inline = RunConfig(verbose=0, engine="inline")
    result = Summing(datasets=rows, preprocessor=MinMaxScaler(["x"]), run_config=inline).fit()
    assert (result.metrics["sum_train"], result.metrics["sum_valid"]) == (1.0, 2.0)
    assert result.checkpoint is not None
    assert result.checkpoint.get_preprocessor().stats_ == {"min(x)": 0.0, "max(x)": 4.0}


def test_construction_does_nothing_yet(results_dir: Path) -> None:
    NotingTrainer()
    assert not results_dir.exists()


def test_old_paths() -> None:
    assert paceline.air.base_trainer.BaseTrainer is paceline.train.trainer.BaseTrainer is BaseTrainer
    with pytest.raises(ConfigError, match=r"TorchTrainer\(train_func"):
        paceline.train.trainer.Trainer(backend="torch", num_workers=2)


class OnlyWorkers(BaseTrainer):
    _scaling_config_allowed_keys = ("num_workers",)

    def training_loop(self) -> None:
        session.report({})


def test_a_trainer_may_take_fewer_scaling_settings() -> None:
    OnlyWorkers(scaling_config=ScalingConfig(num_workers=1))
    with pytest.raises(ConfigError, match=r"placement_strategy='SPREAD'.*OnlyWorkers"):
        OnlyWorkers(scaling_config=ScalingConfig(placement_strategy="SPREAD"))
