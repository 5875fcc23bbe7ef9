"""A train function of one's own: the workers are connected, and ReportCallback tells the run about rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest

from paceline import data, train
from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.errors import CheckpointError, ConfigError, TrainingFailedError
from paceline.train.lightgbm import LightGBMTrainer, RayTrainReportCallback, ReportCallback, get_network_params
from tests.train.lightgbm.boosting import EXACT, classes, rows_of, trees

PARAMS = {"objective": "binary", "learning_rate": 0.5, "verbosity": -1, "num_threads": 1, **EXACT}


def train_func(config: dict[str, Any]) -> None:
    frames = {name: session.get_dataset_shard(name).to_pandas() for name in ("train", "valid")}
    sets = {name: lightgbm.Dataset(frame.drop(columns="y"), frame.y) for name, frame in frames.items()}
    start = session.get_checkpoint()
    callbacks = [ReportCallback(**config["callback"])]
    if config.get("patience"):
        callbacks.append(lightgbm.early_stopping(config["patience"], verbose=False))
    booster = lightgbm.train(
        {**PARAMS, **get_network_params()},
        sets["train"],
        config["rounds"],
        valid_sets=[sets["train"], sets["valid"].set_reference(sets["train"])],
        valid_names=["train", "valid"],
        init_model=None if start is None else ReportCallback.get_model(start),
        callbacks=callbacks,
    )
    Path(config["folder"], f"rank_{session.get_world_rank()}").write_text(trees(booster))
    if config.get("afterwards"):
        train.report({"after": 1})


def trainer_of(tmp_path: Path, rounds: int = 5, workers: int = 1, resume: Any = None, **config: Any) -> LightGBMTrainer:
    """A single worker is this process."""
    return LightGBMTrainer(
        train_func,
        train_loop_config={"callback": {}, "rounds": rounds, "folder": str(tmp_path), **config},
        datasets={
            "train": data.from_pandas(classes().sample(frac=1.0, random_state=0)),
            "valid": data.from_pandas(classes(200, seed=1)),
        },
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, engine="inline" if workers == 1 else None),
        resume_from_checkpoint=resume,
    )


def loss(model: lightgbm.Booster, rows: int, seed: int) -> float:
    frame = classes(rows, seed)
    chances = model.predict(frame.drop(columns="y"))
    return float(-np.log(np.where(frame.y == 1, chances, 1 - chances)).mean())


def test_the_workers_train_one_model_and_report_metrics_of_all_rows(tmp_path: Path) -> None:
    result = trainer_of(tmp_path, workers=2).fit()
    models = {path.read_text() for path in tmp_path.glob("rank_*")}
    assert len(models) == 1
    booster = result.checkpoint.get_model()
    assert trees(booster) in models
    assert len(rows_of(result, "train-binary_logloss")) == 5
    assert result.metrics["train-binary_logloss"] == pytest.approx(loss(booster, 600, 0), rel=1e-9)
    assert result.metrics["valid-binary_logloss"] == pytest.approx(loss(booster, 200, 1), rel=1e-9)


def test_all_workers_stop_early_at_the_same_round_and_the_model_is_kept(tmp_path: Path) -> None:
    result = trainer_of(tmp_path, rounds=200, workers=2, patience=4).fit()
    rounds = result.metrics["training_iteration"]
    assert rounds < 200
    losses = rows_of(result, "valid-binary_logloss")
    booster = result.checkpoint.get_model()
    assert booster.best_iteration == losses.index(min(losses)) + 1 == rounds - 4
    assert result.checkpoint.path.endswith(f"checkpoint_{0:06}")


def test_checkpoints_at_some_rounds_and_what_is_reported(tmp_path: Path) -> None:
    callback = {"metrics": {"loss": "valid-binary_logloss"}, "frequency": 2, "checkpoint_at_end": False}
    result = trainer_of(tmp_path, callback=callback).fit()
    assert "train-binary_logloss" not in result.metrics
    assert len(rows_of(result, "loss")) == 5
    assert len(list(Path(result.path).glob("checkpoint_*"))) == 2
    assert result.checkpoint.get_model().num_trees() == 4


def test_results_can_be_rewritten_and_other_rows_follow(tmp_path: Path) -> None:
    callback = {
        "results_postprocessing_fn": lambda row: {"double": 2 * row["train-binary_logloss"]},
        "filename": "m.txt",
    }
    result = trainer_of(tmp_path, callback=callback, afterwards=True).fit()
    assert result.metrics["after"] == 1
    booster = RayTrainReportCallback.get_model(result.checkpoint, "m.txt")
    assert rows_of(result, "double")[4] == pytest.approx(2 * loss(booster, 600, 0), rel=1e-9)
    with pytest.raises(CheckpointError, match=r"no file.*model\.txt"):
        result.checkpoint.get_model()


def test_a_function_can_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    first = trainer_of(tmp_path).fit()
    second = trainer_of(tmp_path, rounds=3, resume=first.checkpoint).fit()
    assert second.checkpoint.get_model().num_trees() == 8


def test_stopping_the_run_keeps_the_model(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.run_config = RunConfig(verbose=0, engine="inline", stop={"training_iteration": 3})
    result = trainer.fit()
    assert result.metrics["training_iteration"] == 3
    assert result.checkpoint.get_model().num_trees() == 3


def test_one_worker_needs_no_network() -> None:
    with pytest.warns(UserWarning, match="outside"):
        assert get_network_params() == {}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"metrics": 3}, r"metrics.*\b3\b"),
        ({"frequency": -1}, "frequency.*-1"),
        ({"checkpoint_at_end": 1}, "checkpoint_at_end"),
    ],
)
def test_bad_arguments_of_the_callback(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ReportCallback(**arguments)


def test_a_metric_that_is_not_computed_is_named(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, callback={"metrics": "valid-auc"})
    with pytest.raises(TrainingFailedError, match=r"valid-auc.*train-binary_logloss, valid-bin"):
        trainer.fit()
