"""Checkpoints by round, and trainings that go on where another one stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest

from paceline.air import CheckpointConfig, FailureConfig, session
from paceline.air.errors import DataError, TrainingFailedError
from paceline.testing import chaos
from paceline.testing.invariants import check_run
from paceline.train.lightgbm import LightGBMCheckpoint
from tests.train.lightgbm.boosting import classes, numbers, quick_trainer, rows_of, trees

FRAMES = {"train": classes(), "valid": classes(200, seed=1)}
BINARY: dict[str, Any] = {"objective": "binary"}
DRAWN = {"bagging_fraction": 0.7, "bagging_freq": 1, "feature_fraction": 0.5}


def in_two_parts(params: dict[str, Any], first: int = 6, rounds: int = 15, frames: Any = None, **arguments: Any) -> Any:
    """What is trained in one go, and in two."""
    settings = {"frames": frames or FRAMES, "params": params, **arguments}
    whole = quick_trainer(**settings, num_boost_round=rounds).fit()
    begun = quick_trainer(**settings, num_boost_round=first).fit()
    ended = quick_trainer(**settings, num_boost_round=rounds, resume_from_checkpoint=begun.checkpoint).fit()
    assert ended.metrics["training_iteration"] == rounds - first
    return whole, ended


@pytest.mark.parametrize(
    "changes",
    [
        {},
        DRAWN,
        {**DRAWN, "bagging_freq": 3, "seed": 11},
        {"subsample": 0.8, "subsample_freq": 2},
        {"colsample_bytree": 0.5},
        {"pos_bagging_fraction": 0.5, "bagging_freq": 1},
    ],
)
def test_the_model_is_that_of_one_training(changes: dict[str, Any]) -> None:
    whole, ended = in_two_parts({**BINARY, **changes}, inline=True)
    assert trees(ended.checkpoint.get_model()) == trees(whole.checkpoint.get_model())
    assert rows_of(ended, "valid-binary_logloss") == rows_of(whole, "valid-binary_logloss")[6:]


def test_so_it_is_with_two_workers_and_several_classes() -> None:
    frames = {name: frame.assign(y=np.digitize(frame.f0, [-0.5, 0.5])) for name, frame in FRAMES.items()}
    params = {"objective": "multiclass", "num_class": 3, **DRAWN}
    whole, ended = in_two_parts(params, frames=frames)
    assert trees(ended.checkpoint.get_model()) == trees(whole.checkpoint.get_model())


def test_initial_scores_stay_in_effect() -> None:
    frames = {name: numbers(400, seed).assign(start=1.0) for seed, name in enumerate(["train", "valid"])}
    frames["train"]["start"] = frames["train"].f0
    roles = {name: {"init_score": "start"} for name in frames}
    whole, ended = in_two_parts({"objective": "regression"}, frames=frames, dmatrix_params=roles, inline=True)
    assert trees(ended.checkpoint.get_model()) == trees(whole.checkpoint.get_model())
    assert rows_of(ended, "valid-l2") == pytest.approx(rows_of(whole, "valid-l2")[6:], rel=1e-12)


def test_a_schedule_of_learning_rates_goes_on() -> None:
    schedule = [lightgbm.reset_parameter(learning_rate=[0.3 * 0.8**index for index in range(15)])]
    settings: dict[str, Any] = {"frames": FRAMES, "params": BINARY, "num_boost_round": 15, "inline": True}
    whole = quick_trainer(**settings, callbacks=schedule).fit()
    begun = quick_trainer(
        **{**settings, "num_boost_round": 6},
        callbacks=[lightgbm.reset_parameter(learning_rate=[0.3 * 0.8**index for index in range(6)])],
    ).fit()
    ended = quick_trainer(**settings, callbacks=schedule, resume_from_checkpoint=begun.checkpoint).fit()
    assert trees(ended.checkpoint.get_model()) == trees(whole.checkpoint.get_model())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"boosting": "dart"}, "dart"),
        ({"data_sample_strategy": "goss"}, "GOSS"),
        ({"extra_trees": True}, "extra_trees"),
        ({"bagging_fraction": 0.5, "bagging_freq": 4}, "multiple"),
    ],
)
def test_what_cannot_be_the_same_is_told(changes: dict[str, Any], told: str) -> None:
    _, ended = in_two_parts({**BINARY, **changes}, inline=True)
    assert ended.checkpoint.get_model().num_trees() == 15
    (warning,) = ended.warnings
    assert told in warning


def test_a_random_forest_is_refused() -> None:
    params = {**BINARY, "boosting": "rf", "bagging_fraction": 0.5, "bagging_freq": 1}
    begun = quick_trainer(FRAMES, params=params, inline=True).fit()
    again = quick_trainer(
        FRAMES, params=params, num_boost_round=9, inline=True, resume_from_checkpoint=begun.checkpoint
    )
    with pytest.raises(TrainingFailedError, match=r"random forest.*checkpoint"):
        again.fit()


def test_a_preempted_random_forest_is_trained_again_from_the_beginning() -> None:
    """It could not continue from a checkpoint."""
    params = {**BINARY, "boosting": "rf", "bagging_fraction": 0.5, "bagging_freq": 1}
    settings: dict[str, Any] = {"frames": FRAMES, "params": params, "num_boost_round": 6}
    with chaos(sigterm={"rank": 1, "step": 3}):
        result = quick_trainer(**settings).fit()
    check_run(result.path, result=result, iterations=6, attempts=2)
    assert trees(result.checkpoint.get_model()) == trees(quick_trainer(**settings).fit().checkpoint.get_model())


def test_a_random_forest_that_is_stopped_keeps_its_last_round() -> None:
    params = {**BINARY, "boosting": "rf", "bagging_fraction": 0.5, "bagging_freq": 1}
    stop = {"stop": {"training_iteration": 3}}
    result = quick_trainer(FRAMES, params=params, num_boost_round=6, run_config=stop).fit()
    assert result.checkpoint.get_model().num_trees() == 3


def test_a_checkpoint_with_all_rounds_is_evaluated() -> None:
    begun = quick_trainer(FRAMES, params=BINARY, inline=True).fit()
    again = quick_trainer(FRAMES, params=BINARY, inline=True, resume_from_checkpoint=begun.checkpoint).fit()
    assert again.metrics["training_iteration"] == 1
    for key in ("train-binary_logloss", "valid-binary_logloss"):
        assert again.metrics[key] == pytest.approx(begun.metrics[key], rel=1e-12)
    assert trees(again.checkpoint.get_model()) == trees(begun.checkpoint.get_model())


def test_it_is_evaluated_on_the_rows_that_are_given() -> None:
    """Not on those that it was trained on, of which the checkpoint knows the metrics."""
    model = quick_trainer(FRAMES, params=BINARY, inline=True).fit().checkpoint.get_model()
    other = classes(300, seed=8)
    start = LightGBMCheckpoint.from_model(model)
    again = quick_trainer({"train": other}, params=BINARY, inline=True, resume_from_checkpoint=start).fit()
    predicted = model.predict(other.drop(columns="y"))
    loss = -np.log(np.where(other.y == 1, predicted, 1 - predicted)).mean()
    assert again.metrics["train-binary_logloss"] == pytest.approx(loss, rel=1e-9)


def die_once(after_round: int, mark: Path) -> Any:
    """A callback that kills rank 1 after a round."""

    def die(env: Any) -> None:
        if env.iteration + 1 == after_round and session.get_world_rank() == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return die


@pytest.mark.parametrize("dies_after", [pytest.param(6, marks=pytest.mark.slow), 10])
def test_rounds_without_a_tree_are_rounds(dies_after: int, tmp_path: Path) -> None:
    """One tree says it all: nothing can be split in the rounds that follow, and LightGBM adds no tree for them."""
    frame = pd.DataFrame({"x": [0.0, 1.0] * 100, "y": [3.0, 5.0] * 100})
    result = quick_trainer(
        {"train": frame},
        params={"objective": "regression", "learning_rate": 1.0},
        num_boost_round=10,
        callbacks=[die_once(dies_after, tmp_path / "died"), lightgbm.early_stopping(2)],
        checkpoints=CheckpointConfig(checkpoint_frequency=4),
        run_config={"failure_config": FailureConfig(max_failures=1)},
    ).fit()
    assert (tmp_path / "died").exists()
    assert rows_of(result, "training_iteration") == list(range(1, 11))
    assert result.checkpoint.get_model().num_trees() < 4
    names = sorted(path.name for path in Path(result.path).glob("checkpoint_*"))
    assert names == ["checkpoint_000004", "checkpoint_000008", "checkpoint_000010"]


@pytest.mark.slow
def test_a_run_that_is_lost_after_its_last_round_has_no_row_too_many(tmp_path: Path) -> None:
    result = quick_trainer(
        FRAMES,
        params=BINARY,
        num_boost_round=8,
        callbacks=[die_once(8, tmp_path / "died")],
        checkpoints=CheckpointConfig(checkpoint_frequency=4),
        run_config={"failure_config": FailureConfig(max_failures=1)},
    ).fit()
    assert (tmp_path / "died").exists()
    assert rows_of(result, "training_iteration") == list(range(1, 9))
    assert result.checkpoint.get_model().num_trees() == 8


def test_checkpoints_every_so_many_rounds_and_at_the_end() -> None:
    def names(**settings: Any) -> list[str]:
        result = quick_trainer(FRAMES, params=BINARY, inline=True, checkpoints=CheckpointConfig(**settings)).fit()
        return sorted(path.name for path in Path(result.path).glob("checkpoint_*"))

    assert names() == ["checkpoint_000005"]
    assert names(checkpoint_frequency=2) == ["checkpoint_000002", "checkpoint_000004", "checkpoint_000005"]
    assert names(checkpoint_frequency=2, checkpoint_at_end=False) == ["checkpoint_000002", "checkpoint_000004"]
    assert names(checkpoint_at_end=False) == []


def test_a_booster_from_elsewhere_is_trained_further() -> None:
    frame = FRAMES["train"]
    booster = lightgbm.train(
        {**BINARY, "verbosity": -1}, lightgbm.Dataset(frame.drop(columns="y"), frame.y), num_boost_round=4
    )
    start = LightGBMCheckpoint.from_model(booster)
    result = quick_trainer(
        FRAMES,
        params=BINARY,
        inline=True,
        num_boost_round=7,
        resume_from_checkpoint=start,
        callbacks=[lightgbm.early_stopping(9)],
    ).fit()
    assert result.metrics["training_iteration"] == 3
    assert result.checkpoint.get_model().num_trees() == 7


def test_other_features_than_those_of_the_model_are_refused() -> None:
    begun = quick_trainer(FRAMES, params=BINARY, inline=True).fit()
    fewer = {name: frame.drop(columns="f3") for name, frame in FRAMES.items()}
    again = quick_trainer(fewer, params=BINARY, num_boost_round=9, inline=True, resume_from_checkpoint=begun.checkpoint)
    with pytest.raises(TrainingFailedError, match=r"'train'.*'f3'") as caught:
        again.fit()
    assert isinstance(caught.value.__cause__, DataError)
