"""Checkpoints by round, and trainings that go on where another one stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from xgboost.callback import EarlyStopping, LearningRateScheduler, TrainingCallback

from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, session
from paceline.air.errors import TrainingFailedError
from paceline.train.xgboost import XGBoostCheckpoint, XGBoostPredictor
from tests.train.xgboost.boosting import FEW_VALUES, quick_trainer, rows_of, trees

SMALL = {**FEW_VALUES, "objective": "binary:logistic", "max_depth": 3}


def noisy(rows: int = 600) -> pd.DataFrame:
    generator = np.random.default_rng(3)
    frame = pd.DataFrame({f"f{index}": generator.integers(0, 40, rows).astype(float) for index in range(8)})
    frame["y"] = (frame.f0 + frame.f1 + generator.normal(0, 25, rows) > 40).astype(int)
    return frame


class Die(TrainingCallback):
    """Kills rank 1 after a round, once."""

    def __init__(self, after_round: int, mark: Path) -> None:
        super().__init__()
        self.after_round = after_round
        self.mark = mark

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        if epoch + 1 == self.after_round and session.get_world_rank() == 1 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return False


def interrupted(params: dict[str, Any], mark: Path, rounds: int = 12, dies_after: int = 8, **arguments: Any) -> Any:
    """A run whose rank 1 dies after a round, with checkpoints every 5 rounds."""
    callbacks = [*arguments.pop("callbacks", []), Die(dies_after, mark)]
    run_config = RunConfig(
        verbose=0,
        failure_config=FailureConfig(max_failures=1),
        checkpoint_config=CheckpointConfig(checkpoint_frequency=5),
    )
    frames = {"train": noisy(), "valid": noisy(300)}
    result = quick_trainer(
        frames, params=params, num_boost_round=rounds, run_config=run_config, callbacks=callbacks, **arguments
    ).fit()
    assert mark.exists()
    return result


def undisturbed(params: dict[str, Any], rounds: int = 12, **arguments: Any) -> Any:
    frames = {"train": noisy(), "valid": noisy(300)}
    return quick_trainer(frames, params=params, num_boost_round=rounds, **arguments).fit()


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"subsample": 0.5, "seed": 7}, marks=pytest.mark.slow),
        pytest.param(
            {"colsample_bytree": 0.5, "colsample_bylevel": 0.7, "colsample_bynode": 0.7}, marks=pytest.mark.slow
        ),
        {"booster": "dart", "rate_drop": 0.3, "subsample": 0.8},
        pytest.param({"tree_method": "approx", "colsample_bytree": 0.5}, marks=pytest.mark.slow),
    ],
)
def test_a_restarted_run_ends_with_the_very_model_of_an_undisturbed_one(
    sampling: dict[str, Any], tmp_path: Path
) -> None:
    params = {**SMALL, **sampling}
    result, expected = interrupted(params, tmp_path / "died"), undisturbed(params)
    assert trees(result.checkpoint.get_model()) == trees(expected.checkpoint.get_model())
    assert list(result.metrics_dataframe["training_iteration"]) == list(range(1, 13))
    for key in ("train-logloss", "valid-logloss"):
        assert rows_of(result, key) == rows_of(expected, key)


@pytest.mark.parametrize("dies_after", [pytest.param(7, marks=pytest.mark.slow), 8])
def test_early_stopping_and_a_schedule_of_learning_rates_go_on(dies_after: int, tmp_path: Path) -> None:
    """It stops after round 8. Rank 1 dies before, or then, when rank 0 may have kept the final model already."""
    params = {**SMALL, "max_depth": 8}

    def rate(round_number: int) -> float:
        return 0.5 / (1 + round_number)

    def arguments() -> dict[str, Any]:
        return {"callbacks": [LearningRateScheduler(rate)], "early_stopping_rounds": 4}

    result = interrupted(params, tmp_path / "died", rounds=60, dies_after=dies_after, **arguments())
    expected = undisturbed(params, rounds=60, **arguments())
    ours, theirs = result.checkpoint.get_model(), expected.checkpoint.get_model()
    assert [len(each.metrics_dataframe) for each in (expected, result)] == [8, 8]
    assert (ours.best_iteration, ours.best_score) == (theirs.best_iteration, theirs.best_score)
    assert trees(ours) == trees(theirs)


@pytest.mark.slow
def test_a_run_that_is_lost_after_its_last_round_has_no_row_too_many(tmp_path: Path) -> None:
    result = interrupted(SMALL, tmp_path / "died", rounds=10, dies_after=10)
    assert list(result.metrics_dataframe["training_iteration"]) == list(range(1, 11))
    assert result.checkpoint.get_model().num_boosted_rounds() == 10


def test_the_best_model_is_kept_if_asked_for() -> None:
    frames = {"train": noisy(), "valid": noisy(300).assign(y=lambda frame: 1 - frame.y)}
    stop = EarlyStopping(rounds=2, save_best=True, data_name="valid", metric_name="logloss")
    result = quick_trainer(
        frames,
        params=SMALL,
        inline=True,
        num_boost_round=30,
        callbacks=[stop],
        checkpoints=CheckpointConfig(checkpoint_frequency=1),
    ).fit()
    model = result.checkpoint.get_model()
    assert len(result.metrics_dataframe) == 3
    assert (model.best_iteration, model.num_boosted_rounds()) == (0, 1)


def test_checkpoints_come_as_often_as_asked_for() -> None:
    checkpoints = CheckpointConfig(checkpoint_frequency=2, num_to_keep=None)
    result = quick_trainer(
        {"train": noisy()}, params=SMALL, inline=True, num_boost_round=5, checkpoints=checkpoints
    ).fit()
    kept = [checkpoint for checkpoint, _ in result.best_checkpoints]
    assert [Path(checkpoint.path).name for checkpoint in kept] == [
        "checkpoint_000002",
        "checkpoint_000004",
        "checkpoint_000005",
    ]
    assert [checkpoint.get_model().num_boosted_rounds() for checkpoint in kept] == [2, 4, 5]


def test_no_checkpoint_at_the_end_if_not_wanted() -> None:
    result = quick_trainer(
        {"train": noisy()}, params=SMALL, inline=True, checkpoints=CheckpointConfig(checkpoint_at_end=False)
    ).fit()
    assert result.checkpoint is None


def test_a_stopped_run_keeps_the_model_of_its_last_row() -> None:
    run_config = RunConfig(verbose=0, stop={"training_iteration": 3})
    result = quick_trainer({"train": noisy()}, params=SMALL, num_boost_round=50, run_config=run_config).fit()
    assert len(result.metrics_dataframe) == 3
    assert result.checkpoint.get_model().num_boosted_rounds() == 3


def test_only_the_missing_rounds_are_trained() -> None:
    first = quick_trainer({"train": noisy()}, params=SMALL, inline=True, num_boost_round=4).fit()
    more = quick_trainer(
        {"train": noisy()}, params=SMALL, inline=True, num_boost_round=10, resume_from_checkpoint=first.checkpoint
    ).fit()
    whole = quick_trainer({"train": noisy()}, params=SMALL, inline=True, num_boost_round=10).fit()
    assert len(more.metrics_dataframe) == 6
    assert trees(more.checkpoint.get_model()) == trees(whole.checkpoint.get_model())


@pytest.mark.parametrize("as_dict", [False, True])
def test_a_finished_checkpoint_is_evaluated_once(as_dict: bool, tmp_path: Path) -> None:
    first = quick_trainer({"train": noisy()}, params=SMALL, inline=True, num_boost_round=4).fit()
    model: Any = XGBoostCheckpoint.from_model(first.checkpoint.get_model())
    if as_dict:
        model = Checkpoint.from_dict({"model": first.checkpoint.get_model()}).to_directory(tmp_path / "stored")
    again = quick_trainer(
        {"train": noisy()}, params=SMALL, inline=True, num_boost_round=4, resume_from_checkpoint=model
    ).fit()
    assert len(again.metrics_dataframe) == 1
    assert again.metrics["train-logloss"] == pytest.approx(first.metrics["train-logloss"], rel=1e-6)
    assert trees(again.checkpoint.get_model()) == trees(first.checkpoint.get_model())


def test_the_features_of_a_model_stay_what_they_are() -> None:
    """Rows that come later have their columns in another order, and not all of the categories."""
    frame = noisy().assign(city=lambda frame: ["Bern", "Kyiv", "Oslo", "Rome"] * (len(frame) // 4))
    first = quick_trainer({"train": frame}, params=SMALL, inline=True, num_boost_round=4).fit()
    later = frame[frame.city > "K"][[*reversed(frame.columns)]]
    more = quick_trainer(
        {"train": later}, params=SMALL, num_boost_round=8, resume_from_checkpoint=first.checkpoint
    ).fit()
    model = more.checkpoint.get_model()
    assert model.feature_names == first.checkpoint.get_model().feature_names
    assert model.get_dump()[:4] == first.checkpoint.get_model().get_dump()
    predicted = XGBoostPredictor.from_checkpoint(more.checkpoint).predict(later).predictions
    loss = -np.log(np.where(later.y == 1, predicted, 1 - predicted)).mean()
    assert more.metrics["train-logloss"] == pytest.approx(loss, rel=1e-5)
    unknown = later.assign(city="Lima")
    with pytest.raises(TrainingFailedError, match="category 'Lima'"):
        quick_trainer({"train": unknown}, params=SMALL, inline=True, resume_from_checkpoint=more.checkpoint).fit()


class EndsOnce(TrainingCallback):
    """Writes a line whenever it is told that training is over."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def after_training(self, model: Any) -> Any:
        with self._path.open("a") as file:
            file.write("over\n")
        return model


@pytest.mark.parametrize("rounds", [3, 50])
def test_callbacks_learn_once_that_training_is_over(rounds: int, tmp_path: Path) -> None:
    """Also where the run is stopped at the very row that would have been the last one."""
    run_config = RunConfig(verbose=0, engine="inline", stop={"training_iteration": 3})
    callbacks = [EndsOnce(tmp_path / "told")]
    quick_trainer(
        {"train": noisy()}, params=SMALL, workers=1, num_boost_round=rounds, run_config=run_config, callbacks=callbacks
    ).fit()
    assert (tmp_path / "told").read_text() == "over\n"
