"""A train function of one's own: the workers are connected, and ReportCallback tells the run about rounds."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from xgboost.callback import TrainingCallback

from paceline import data
from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.errors import CheckpointError, ConfigError, TrainingFailedError
from paceline.train.xgboost import RayTrainReportCallback, ReportCallback, XGBoostTrainer
from tests.train.xgboost.boosting import FEW_VALUES, quick_trainer, rows_of, trees

PARAMS = {**FEW_VALUES, "objective": "reg:squarederror", "max_depth": 3}


def numbers() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({f"f{index}": generator.integers(0, 30, 200).astype(float) for index in range(4)})
    return frame.assign(y=frame.f0 * 2.0 - frame.f1)


def train_func(config: dict[str, Any]) -> None:
    rows = session.get_dataset_shard("train").to_pandas()
    matrix = xgboost.QuantileDMatrix(rows.drop(columns="y"), rows["y"], nthread=1)
    start = session.get_checkpoint()
    model = None if start is None else ReportCallback.get_model(start, config.get("filename", "model.ubj"))
    xgboost.train(
        PARAMS,
        matrix,
        config["rounds"],
        evals=[(matrix, "train")],
        verbose_eval=False,
        xgb_model=model,
        callbacks=[ReportCallback(**config["callback"])],
    )


def trainer_of(
    callback: dict[str, Any] | None = None, rounds: int = 5, *, inline: bool = True, **arguments: Any
) -> XGBoostTrainer:
    filename = (callback or {}).get("filename", "model.ubj")
    return XGBoostTrainer(
        train_func,
        train_loop_config={"rounds": rounds, "callback": callback or {}, "filename": filename},
        datasets={"train": data.from_pandas(numbers())},
        scaling_config=ScalingConfig(num_workers=1 if inline else 2),
        run_config=RunConfig(verbose=0, engine="inline" if inline else None),
        **arguments,
    )


def test_the_function_trains_the_model_of_the_other_form() -> None:
    result = trainer_of(inline=False).fit()
    expected = quick_trainer({"train": numbers()}, params=PARAMS).fit()
    assert trees(result.checkpoint.get_model()) == trees(expected.checkpoint.get_model())
    assert rows_of(result, "train-rmse") == pytest.approx(rows_of(expected, "train-rmse"), rel=1e-6)
    assert len(result.metrics_dataframe) == 5
    assert trees(ReportCallback.get_model(result.checkpoint)) == trees(expected.checkpoint.get_model())


def test_checkpoints_as_often_as_asked_for_and_a_file_of_another_name() -> None:
    result = trainer_of({"frequency": 2, "filename": "trees.json"}, rounds=5).fit()
    counts = [
        ReportCallback.get_model(checkpoint, "trees.json").num_boosted_rounds()
        for checkpoint, _ in result.best_checkpoints
    ]
    assert counts == [2, 4, 5]
    assert Path(result.checkpoint.path, "trees.json").read_bytes()[:1] == b"{"
    with pytest.raises(CheckpointError, match=r"'model\.ubj'.*trees\.json"):
        ReportCallback.get_model(result.checkpoint)


def test_no_checkpoint_at_the_end_if_not_wanted() -> None:
    assert trainer_of({"checkpoint_at_end": False}).fit().checkpoint is None


def test_a_function_may_go_on_from_a_checkpoint() -> None:
    first = trainer_of(rounds=3).fit()
    more = trainer_of(rounds=2, resume_from_checkpoint=first.checkpoint).fit()
    assert trees(more.checkpoint.get_model()) == trees(trainer_of(rounds=5).fit().checkpoint.get_model())


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ("train-rmse", {"train-rmse"}),
        (["train-rmse"], {"train-rmse"}),
        ({"loss": "train-rmse"}, {"loss"}),
    ],
)
def test_metrics_are_chosen_and_renamed(metrics: Any, expected: set[str]) -> None:
    result = trainer_of({"metrics": metrics}).fit()
    assert {key for key in result.metrics if key in ("train-rmse", "loss")} == expected


def last_error(history: dict[str, Any]) -> dict[str, Any]:
    return {"rounds": len(history["train"]["rmse"])}


def test_a_function_may_make_the_row() -> None:
    result = trainer_of({"results_postprocessing_fn": last_error}).fit()
    assert rows_of(result, "rounds") == [1, 2, 3, 4, 5]


def die_in_round_two(config: dict[str, Any]) -> None:
    class Die(TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            if epoch == 1 and session.get_world_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return False

    rows = session.get_dataset_shard("train").to_pandas()
    matrix = xgboost.QuantileDMatrix(rows.drop(columns="y"), rows["y"], nthread=1)
    xgboost.train(PARAMS, matrix, 50, callbacks=[Die()])


@pytest.mark.slow
def test_the_death_of_a_worker_is_the_cause_and_what_xgboost_says_about_it_is_not() -> None:
    trainer = XGBoostTrainer(
        die_in_round_two,
        train_loop_config={},
        datasets={"train": data.from_pandas(numbers())},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0),
    )
    with pytest.raises(TrainingFailedError, match=r"rank 1: .*SIGKILL"):
        trainer.fit()


def test_slips_are_told() -> None:
    with pytest.raises(ConfigError, match=r"metrics.*\b3\b"):
        ReportCallback(metrics=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"frequency.*-1"):
        ReportCallback(frequency=-1)
    with pytest.raises(TrainingFailedError, match=r"valid-rmse.*train-rmse"):
        trainer_of({"metrics": "valid-rmse"}).fit()
    assert RayTrainReportCallback is ReportCallback
