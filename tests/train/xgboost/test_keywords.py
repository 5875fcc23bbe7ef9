"""Keywords of xgboost.train: objectives and metrics of one's own, early stopping, callbacks, printing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from xgboost.callback import TrainingCallback

from paceline.air import session
from tests.train.xgboost.boosting import FEW_VALUES, alone, quick_trainer, rows_of, trees

REGRESSION = {**FEW_VALUES, "max_depth": 3}


def skewed() -> pd.DataFrame:
    """301 rows, so that the workers have unequally many, and the first half is unlike the second."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({f"f{index}": generator.integers(0, 30, 301).astype(float) for index in range(4)})
    frame["y"] = np.where(np.arange(301) < 150, 50.0, 0.0) + frame.f0 + generator.integers(0, 5, 301)
    return frame


def squared_error(predicted: np.ndarray, matrix: xgboost.DMatrix) -> tuple[np.ndarray, np.ndarray]:
    return predicted - matrix.get_label(), np.ones_like(predicted)


def mean_error(predicted: np.ndarray, matrix: xgboost.DMatrix) -> tuple[str, float]:
    return "mean_error", float(np.abs(predicted - matrix.get_label()).mean())


def test_an_objective_and_a_metric_of_ones_own() -> None:
    frames = {"train": skewed(), "valid": skewed()[:101]}
    params = {**REGRESSION, "base_score": 0.5}
    keywords = {"obj": squared_error, "custom_metric": mean_error}
    expected, history = alone(frames, "y", params, 6, **keywords)
    trainer = quick_trainer(frames, params=params, num_boost_round=6, **keywords)
    with pytest.warns(UserWarning, match=r"custom_metric.*split"):
        result = trainer.fit()
    assert trees(result.checkpoint.get_model()) == trees(expected)
    for name in frames:  # a mean over rows is exact, since workers count by their rows
        assert rows_of(result, f"{name}-mean_error") == pytest.approx(history[name]["mean_error"], rel=1e-6)


def two_errors(predicted: np.ndarray, matrix: xgboost.DMatrix) -> list[tuple[str, float]]:
    return [mean_error(predicted, matrix), ("squared", float(((predicted - matrix.get_label()) ** 2).mean()))]


@pytest.mark.slow
def test_a_function_may_give_several_metrics() -> None:
    frames = {"train": skewed()}
    _, history = alone(frames, "y", REGRESSION, 3, custom_metric=two_errors)
    with pytest.warns(UserWarning, match=r"custom_metric.*split"):
        result = quick_trainer(frames, params=REGRESSION, num_boost_round=3, custom_metric=two_errors).fit()
    for metric in ("mean_error", "squared"):
        assert rows_of(result, f"train-{metric}") == pytest.approx(history["train"][metric], rel=1e-6)


def test_with_seeds_of_its_own_a_single_worker_draws_what_xgboost_draws() -> None:
    params = {**REGRESSION, "subsample": 0.5, "colsample_bytree": 0.5, "seed": 5, "seed_per_iteration": False}
    expected, _ = alone({"train": skewed()}, "y", params, 5)
    result = quick_trainer({"train": skewed()}, params=params, inline=True).fit()
    assert trees(result.checkpoint.get_model()) == trees(expected)


def test_early_stopping_stops_all_workers_at_the_round_of_one_process() -> None:
    generator = np.random.default_rng(5)
    frame = skewed().assign(y=generator.integers(0, 2, 301))
    frames = {"train": frame[:200], "valid": frame[200:]}
    params = {**REGRESSION, "objective": "binary:logistic", "eval_metric": ["error", "logloss"]}
    expected, _ = alone(frames, "y", params, 50, early_stopping_rounds=3)
    result = quick_trainer(frames, params=params, num_boost_round=50, early_stopping_rounds=3).fit()
    model = result.checkpoint.get_model()
    assert 3 < len(result.metrics_dataframe) < 50
    assert (model.best_iteration, model.num_boosted_rounds()) == (
        expected.best_iteration,
        expected.num_boosted_rounds(),
    )
    assert model.best_score == pytest.approx(expected.best_score, rel=1e-6)
    assert len(result.rank_dataframe.groupby("rank")["valid-logloss"].count().unique()) == 1


class CountRounds(TrainingCallback):
    """Writes down which rounds each worker was told about, and stops after the third."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.rounds: list[int] = []

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self.rounds.append(epoch)
        (self.folder / f"rank_{session.get_world_rank()}").write_text(repr(self.rounds))
        assert len(evals_log["train"]["rmse"]) == len(self.rounds)
        return epoch == 2


def test_callbacks_run_on_every_worker_and_may_stop(tmp_path: Path) -> None:
    result = quick_trainer({"train": skewed()}, num_boost_round=9, callbacks=[CountRounds(tmp_path)]).fit()
    assert [(tmp_path / f"rank_{rank}").read_text() for rank in range(2)] == ["[0, 1, 2]"] * 2
    assert len(result.metrics_dataframe) == 3
    assert result.checkpoint.get_model().num_boosted_rounds() == 3


def test_xgboost_prints_its_rounds_if_asked_to() -> None:
    def log_of(**keywords: Any) -> str:
        result = quick_trainer({"train": skewed()}, workers=1, num_boost_round=4, **keywords).fit()
        return Path(result.log_dir, "logs", "rank_0.log").read_text()

    assert "train-rmse" not in log_of()
    printed = log_of(verbose_eval=2)
    assert "[0]" in printed
    assert "[2]" in printed
    assert "[1]" not in printed
