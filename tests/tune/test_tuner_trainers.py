"""A Tuner over trainers: what of a trainer is searched, which settings hold, and that data is prepared once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from paceline import data, tune
from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError
from paceline.data import from_items
from paceline.data.preprocessor import Preprocessor
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.train import BaseTrainer, DataParallelTrainer
from paceline.train.sklearn import SklearnTrainer
from paceline.tune import Tuner
from paceline.tune.stopper import Stopper
from tests.train.trees.libraries import XGBOOST, Library, binary, both_libraries, regression, rows_of
from tests.tune.counted_scaler import CountedScaler
from tests.tune.searching import Overlap, column, config_of, search, tuner

ONE, TWO = ScalingConfig(num_workers=1), ScalingConfig(num_workers=2)


# -- which trainers ---------------------------------------------------------------------------


def test_torch_trainers_reach_the_weights_of_their_learning_rate() -> None:
    from paceline.train.torch import TorchTrainer

    def train(config: dict[str, Any]) -> None:
        import torch

        torch.manual_seed(0)
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        for _ in range(config["epochs"]):
            loss = (model(torch.ones(4, 1)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            weight = float(model.weight.item())
            checkpoint = Checkpoint.from_dict({"weight": weight})
            session.report({"loss": (weight - 1) ** 2, "weight": weight}, checkpoint=checkpoint)

    trainer = TorchTrainer(train, train_loop_config={"epochs": 3}, scaling_config=ONE)
    space = {"train_loop_config": {"lr": tune.grid_search([0.05, 0.25])}}
    grid = search(trainer, space, metric="loss", mode="min")
    for result in grid:
        lr = config_of(result)["train_loop_config"]["lr"]
        assert config_of(result)["train_loop_config"]["epochs"] == 3
        assert column(result, "weight") == pytest.approx([1 - (1 - 2 * lr) ** (n + 1) for n in range(3)])
        check_run(result.path, result=result, iterations=3, attempts=1)
    best = grid.get_best_result()
    assert config_of(best)["train_loop_config"]["lr"] == 0.25
    assert best.checkpoint is not None
    assert best.checkpoint.to_dict()["weight"] == pytest.approx(1 - 0.5**3)


@both_libraries
def test_boosting_trainers_are_what_the_library_trains_alone(library: Library) -> None:
    task = binary()
    depth = "max_depth"
    trainer = library.trainer(task, workers=1, num_boost_round=4)
    grid = search(
        trainer,
        {"params": {depth: tune.grid_search([1, 3])}},
        metric=library.key(task),
        mode="min",
        engine="inline",
        checkpoint_config=CheckpointConfig(checkpoint_frequency=2),
    )
    for result in grid:
        params = config_of(result)["params"]
        alone, _ = library.alone(task, 4, **{depth: params[depth]})
        assert rows_of(result, library.key(task)) == pytest.approx(alone, rel=1e-4)
        assert [checkpoint.iteration for checkpoint, _ in result.best_checkpoints] == [2, 4]
        assert library.rounds(result.checkpoint) == 4
    assert config_of(grid.get_best_result())["params"][depth] == 3


def test_sklearn_trainers_search_parameters_of_the_estimator() -> None:
    features, labels = load_breast_cancer(return_X_y=True, as_frame=True)
    frame = ((features - features.mean()) / features.std()).assign(target=labels)
    trainer = SklearnTrainer(
        estimator=LogisticRegression(max_iter=500),
        label_column="target",
        datasets={"train": data.from_pandas(frame[:400]), "valid": data.from_pandas(frame[400:])},
    )
    grid = search(
        trainer,
        {"params": {"C": tune.grid_search([1e-4, 1.0])}},
        metric="valid/test_score",
        mode="max",
        engine="inline",
    )
    for result in grid:
        model = LogisticRegression(max_iter=500, C=config_of(result)["params"]["C"])
        model.fit(features_of(frame[:400]), labels[:400])
        assert result.metrics["valid"]["test_score"] == pytest.approx(
            model.score(features_of(frame[400:]), labels[400:])
        )
    assert config_of(grid.get_best_result())["params"] == {"C": 1.0}


def features_of(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns="target")


def test_trainers_of_ones_own() -> None:
    class Adding(BaseTrainer):
        def __init__(self, *, number: int, **more: Any) -> None:
            self.number = number
            super().__init__(**more)

        def training_loop(self) -> None:
            session.report({"sum": self.number + 1})

    grid = search(Adding(number=0), {"number": tune.grid_search([4, 5])}, engine="inline")
    assert [result.metrics["sum"] for result in grid] == [5, 6]


@pytest.mark.parametrize(
    "scaling",
    [
        ScalingConfig(num_workers=tune.grid_search([1, 2])),  # type: ignore[arg-type]
        pytest.param({"num_workers": tune.grid_search([1, 2])}, marks=pytest.mark.slow),
        pytest.param(tune.grid_search([ONE, TWO]), marks=pytest.mark.slow),
    ],
    ids=["field of ScalingConfig", "key of a dict", "whole ScalingConfig"],
)
def test_workers_in_the_space(scaling: Any) -> None:
    def train() -> None:
        session.report({"workers": session.get_world_size()})

    grid = search(DataParallelTrainer(train, scaling_config=ONE), {"scaling_config": scaling})
    assert [result.metrics["workers"] for result in grid] == [1, 2]


# -- datasets ---------------------------------------------------------------------------------


def test_datasets_are_prepared_once_for_all_trials(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    rows = data.from_pandas(pd.DataFrame({"x": np.arange(20.0)}))

    def train(config: dict[str, Any]) -> None:
        shard = session.get_dataset_shard("train")
        assert shard is not None
        total = sum(float(batch["x"].sum()) for batch in shard.iter_batches(batch_size=4))
        session.report({"total": config["factor"] * total})

    trainer = DataParallelTrainer(
        train,
        scaling_config=ONE,
        datasets={"train": rows},
        preprocessor=CountedScaler(marks.directory),
    )
    grid = search(trainer, {"train_loop_config": {"factor": tune.grid_search([1, 2, 3])}}, engine="inline")
    assert [result.metrics["total"] for result in grid] == pytest.approx([0.0] * 3)
    assert len(marks.read("fitted")) == 1


def test_a_dataset_in_the_space(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    few, many = (data.from_pandas(pd.DataFrame({"x": np.arange(float(size))})) for size in (10, 30))

    def train(config: dict[str, Any]) -> None:
        shard = session.get_dataset_shard("train")
        assert shard is not None
        rows = [x for batch in shard.iter_batches(batch_size=8) for x in batch["x"]]
        session.report({"rows": len(rows), "smallest": min(rows)})

    trainer = DataParallelTrainer(train, scaling_config=ONE, preprocessor=CountedScaler(marks.directory))
    grid = search(trainer, {"datasets": {"train": tune.grid_search([few, many])}}, num_samples=2, engine="inline")
    assert [result.metrics["rows"] for result in grid] == [10, 30, 10, 30]
    assert [result.metrics["smallest"] for result in grid] == pytest.approx([-4.5, -14.5] * 2)
    assert len(marks.read("fitted")) == 2


fitting, seen_by_stopper = threading.Event(), threading.Event()


class SlowToFit(Preprocessor):
    """Is not fitted before the end of the search has been decided."""

    def _fit(self, dataset: Any) -> Preprocessor:
        fitting.set()
        assert seen_by_stopper.wait(60)
        return self

    def _transform_numpy(self, batch: Any) -> Any:
        return batch


class StopWhileFitting(Stopper):
    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if fitting.is_set():
            seen_by_stopper.set()
        return fitting.is_set()


def test_trial_whose_data_is_being_prepared_is_stopped_like_the_others(tmp_path: Path) -> None:
    fitting.clear()
    seen_by_stopper.clear()
    marks = Marks(tmp_path / "marks")
    trainer = DataParallelTrainer(
        lambda: marks.say("started"),
        scaling_config=ScalingConfig(num_workers=1),
        datasets={"train": from_items([{"a": 1}])},
        preprocessor=SlowToFit(),
    )
    grid = tuner(trainer, {}, num_samples=1, stop=StopWhileFitting(), storage_path=str(tmp_path)).fit()
    assert not grid.errors
    assert not marks.read("started")


# -- which settings hold ----------------------------------------------------------------------


def two_steps() -> Any:
    def loop() -> None:  # in here: what is found by its name has workers import this file and all that it needs
        for step in range(2):
            session.report({"step": step})

    return loop


def test_the_trainers_run_config_holds_unless_the_tuner_has_one(tmp_path: Path) -> None:
    own = RunConfig(verbose=0, name="own", storage_path=str(tmp_path / "a"), stop={"training_iteration": 1})
    trainer = DataParallelTrainer(two_steps(), scaling_config=ONE, run_config=own)
    grid = Tuner(trainer).fit()
    assert Path(grid.experiment_path) == tmp_path / "a" / "own"
    assert grid[0].metrics["training_iteration"] == 1
    grid = Tuner(trainer, run_config=RunConfig(verbose=0, name="other", storage_path=str(tmp_path / "b"))).fit()
    assert Path(grid.experiment_path) == tmp_path / "b" / "other"
    assert grid[0].metrics["training_iteration"] == 2


def test_what_cannot_be_searched_is_refused_when_the_tuner_is_made(results_dir: Path) -> None:
    trainer = DataParallelTrainer(two_steps(), scaling_config=ONE)
    with pytest.raises(ConfigError, match=r"param_space.*Tuner\(run_config="):
        Tuner(trainer, param_space={"run_config": RunConfig()})
    with pytest.raises(ConfigError, match=r"'lr'.*DataParallelTrainer.*train_loop_config"):
        Tuner(trainer, param_space={"lr": tune.uniform(0, 1)})
    with pytest.raises(ConfigError, match="checkpoint_frequency"):
        Tuner(trainer, run_config=RunConfig(checkpoint_config=CheckpointConfig(checkpoint_frequency=1)))
    assert not results_dir.exists()


def test_workers_count_and_the_trainer_itself_does_not(tmp_path: Path) -> None:
    """Two trials of one worker each have room on two CPUs, and one trial of two workers has too."""
    overlap = Overlap(tmp_path / "marks")

    def train(config: dict[str, Any]) -> None:
        if session.get_world_rank() == 0:
            overlap.enter()
            overlap.meet(config["meet"])
        session.report({"step": 1})
        if session.get_world_rank() == 0:
            overlap.leave()
        session.report({"step": 2})

    import paceline

    paceline.shutdown()
    paceline.init(num_cpus=2)
    try:
        trainer = DataParallelTrainer(train, scaling_config=ONE, train_loop_config={"meet": 2})
        search(trainer, num_samples=4)
        assert overlap.most == 2
        search(trainer, {"scaling_config": {"num_workers": 2}, "train_loop_config": {"meet": 1}}, num_samples=3)
        assert overlap.marks.read("step")[-6:] == sorted(
            overlap.marks.read("step")[-6:], key=lambda mark: (mark["trial"], -mark["change"])
        )
    finally:
        paceline.shutdown()


def test_a_stopped_boosting_trial_takes_no_further_round(tmp_path: Path) -> None:
    """The stop comes between two rounds, and the checkpoint is of the round that was stopped at."""
    task = regression()
    marks = Marks(tmp_path / "marks")
    trainer = XGBOOST.trainer(
        task,
        workers=1,
        num_boost_round=50,
        callbacks=[XGBOOST.before_rounds(lambda number: marks.say("round", number=number))],
    )
    grid = search(
        trainer,
        {"params": {"max_depth": tune.grid_search([2, 3])}},
        stop={"training_iteration": 3},
        engine="inline",
        checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
    )
    for result in grid:
        assert len(rows_of(result, XGBOOST.key(task))) == 3
        assert XGBOOST.rounds(result.checkpoint) == 3
    assert sorted(mark["number"] for mark in marks.read("round")) == [1, 1, 2, 2, 3, 3]
