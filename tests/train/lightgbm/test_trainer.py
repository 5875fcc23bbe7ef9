"""The model from several workers, against LightGBM alone on the same rows.

Workers import this module for its functions and classes: scikit-learn is imported by the tests that use it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest

from paceline.air import session
from paceline.air.data_config import DatasetConfig
from paceline.air.errors import DataError, TrainingFailedError
from tests.train.lightgbm.boosting import (
    EXACT,
    QUIET,
    alone,
    assert_same_model,
    classes,
    numbers,
    quick_trainer,
    rows_of,
)


@pytest.mark.parametrize(
    ("workers", "objective"),
    [
        (2, "regression"),
        *(pytest.param(workers, "regression", marks=pytest.mark.slow) for workers in (1, 3)),
        *(pytest.param(workers, "binary", marks=pytest.mark.slow) for workers in (1, 2, 3)),
    ],
)
def test_sorted_rows_give_the_trees_of_one_process(workers: int, objective: str) -> None:
    """LightGBM by itself finds bins on the rows of one worker, and would miss most values here."""
    frame = numbers() if objective == "regression" else classes()
    params = {"objective": objective, **EXACT}
    expected, history = alone({"train": frame}, "y", params, 8)
    result = quick_trainer({"train": frame}, params=params, num_boost_round=8, workers=workers).fit()
    booster = result.checkpoint.get_model()
    assert_same_model(booster, expected)
    assert np.allclose(
        booster.predict(frame[["f0", "f1", "f2", "f3", "f4"]]), expected.predict(frame.drop(columns="y"))
    )
    for metric, values in history["train"].items():
        assert rows_of(result, f"train-{metric}") == pytest.approx(values, rel=1e-9)


def test_a_sample_of_many_rows_is_the_one_that_a_single_process_takes() -> None:
    frame = numbers(rows=3000)
    params = {"objective": "regression", "bin_construct_sample_cnt": 1000}
    expected, _ = alone({"train": frame}, "y", params, 5)
    result = quick_trainer({"train": frame}, params=params).fit()
    assert_same_model(result.checkpoint.get_model(), expected)


@pytest.mark.slow
def test_binary_classification_reaches_the_scores_of_the_library() -> None:
    """By default a leaf needs 20 rows; workers estimate that number, and the trees differ a little."""
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame.sample(frac=1.0, random_state=0)
    frames = {"train": frame[:400], "valid": frame[400:]}
    params = {"objective": "binary", "metric": ["binary_logloss", "binary_error"]}
    _, history = alone(frames, "target", params, 20)
    result = quick_trainer(frames, "target", params=params, num_boost_round=20).fit()
    assert len(rows_of(result, "valid-binary_error")) == 20
    assert result.metrics["valid-binary_logloss"] == pytest.approx(history["valid"]["binary_logloss"][-1], abs=0.03)
    assert result.metrics["valid-binary_error"] == pytest.approx(history["valid"]["binary_error"][-1], abs=0.02)


def test_metrics_are_those_of_the_final_model_over_all_rows() -> None:
    frames = {"train": classes(301), "valid": classes(268, seed=1)}
    result = quick_trainer(frames, params={"objective": "binary"}).fit()
    model = result.checkpoint.get_model()
    for name, rows in frames.items():
        chances = model.predict(rows.drop(columns="y"))
        loss = -np.log(np.where(rows.y == 1, chances, 1 - chances)).mean()
        assert result.metrics[f"{name}-binary_logloss"] == pytest.approx(loss, rel=1e-9)


@pytest.mark.slow
def test_multiclass_and_regression_reach_the_scores_of_the_library() -> None:
    from sklearn.datasets import load_diabetes, load_wine

    wine = load_wine(as_frame=True).frame.sample(frac=1.0, random_state=0)
    frames = {"train": wine[:120], "valid": wine[120:]}
    params = {"objective": "multiclass", "num_class": 3, **EXACT}
    _, expected = alone(frames, "target", params, 10)
    result = quick_trainer(frames, "target", params=params, num_boost_round=10).fit()
    assert result.checkpoint.get_model().num_trees() == 30
    assert rows_of(result, "valid-multi_logloss") == pytest.approx(expected["valid"]["multi_logloss"], rel=1e-4)

    diabetes = load_diabetes(as_frame=True).frame
    frames = {"train": diabetes[:300], "valid": diabetes[300:]}
    params = {"objective": "regression", "metric": "rmse"}
    _, expected = alone(frames, "target", params, 15)
    result = quick_trainer(frames, "target", params=params, num_boost_round=15).fit()
    assert rows_of(result, "valid-rmse") == pytest.approx(expected["valid"]["rmse"], rel=1e-9)


def test_ranking_keeps_queries_together() -> None:
    frames = {}
    for seed, (name, queries) in enumerate({"train": 23, "valid": 10}.items()):
        frame = numbers(queries * 25, seed).sample(frac=1.0, random_state=0)
        frames[name] = frame.assign(y=np.digitize(frame.y, [0, 1, 2]), query=np.repeat(np.arange(queries), 25))
    params = {"objective": "lambdarank", "eval_at": [3, 5], **EXACT}
    train, valid = (
        lightgbm.Dataset(frame.drop(columns=["y", "query"]), frame.y, group=[25] * (len(frame) // 25))
        for frame in frames.values()
    )
    history: dict[str, Any] = {}
    expected = lightgbm.train(
        {**QUIET, **params},
        train,
        5,
        valid_sets=[train, valid.set_reference(train)],
        valid_names=["train", "valid"],
        callbacks=[lightgbm.record_evaluation(history)],
        keep_training_booster=True,
    )
    for word, inline in (("group", False), ("qid", True)):
        roles = {name: {word: "query"} for name in frames}
        result = quick_trainer(frames, params=params, dmatrix_params=roles, inline=inline).fit()
        assert_same_model(result.checkpoint.get_model(), expected)
        for key in ("ndcg@3", "ndcg@5"):
            assert rows_of(result, f"valid-{key}") == pytest.approx(history["valid"][key], rel=1e-9)
            assert rows_of(result, f"train-{key}") == pytest.approx(history["train"][key], rel=1e-9)


def test_weights_count_in_trees_and_metrics() -> None:
    """Where training starts is averaged over workers without regard to weights: it is switched off here."""
    frame = numbers().assign(w=np.random.default_rng(1).uniform(0.1, 3, 600))
    train = lightgbm.Dataset(frame.drop(columns=["y", "w"]), frame.y, weight=frame.w, params=QUIET)
    history: dict[str, Any] = {}
    params = {"objective": "regression", "metric": ["rmse", "l1"], "boost_from_average": False, **EXACT}
    expected = lightgbm.train(
        {**QUIET, **params},
        train,
        5,
        valid_sets=[train],
        valid_names=["t"],
        callbacks=[lightgbm.record_evaluation(history)],
    )
    result = quick_trainer({"train": frame}, params=params, dmatrix_params={"train": {"weight": "w"}}).fit()
    assert_same_model(result.checkpoint.get_model(), expected)
    for metric, values in history["t"].items():
        assert rows_of(result, f"train-{metric}") == pytest.approx(values, rel=1e-6)


def test_initial_scores_are_where_training_starts() -> None:
    frame = numbers().assign(start=lambda frame: frame.f0)
    train = lightgbm.Dataset(frame.drop(columns=["y", "start"]), frame.y, init_score=frame.start, params=QUIET)
    expected = lightgbm.train({**QUIET, "objective": "regression"}, train, 5)
    result = quick_trainer({"train": frame}, dmatrix_params={"train": {"init_score": "start"}}).fit()
    assert_same_model(result.checkpoint.get_model(), expected)


def pull_to_label(predictions: np.ndarray, dataset: lightgbm.Dataset) -> tuple[np.ndarray, np.ndarray]:
    return predictions - dataset.get_label(), np.ones_like(predictions)


def worst(predictions: np.ndarray, dataset: lightgbm.Dataset) -> tuple[str, float, bool]:
    return "worst", float(np.abs(predictions - dataset.get_label()).max()), False


def test_objectives_and_metrics_that_are_functions() -> None:
    frames = {"train": numbers(), "valid": numbers(200, seed=1)}
    params = {"objective": pull_to_label, "metric": "l2"}
    expected, history = alone(frames, "y", params, 5, feval=worst)
    trainer = quick_trainer(frames, params=params, feval=worst)
    with pytest.warns(UserWarning, match=r"feval.*'train'.*approximate"):
        result = trainer.fit()
    assert_same_model(result.checkpoint.get_model(), expected)
    assert rows_of(result, "valid-worst") == pytest.approx(history["valid"]["worst"], rel=1e-9)
    assert rows_of(result, "train-l2") == pytest.approx(history["train"]["l2"], rel=1e-9)
    assert result.metrics["train-worst"] <= history["train"]["worst"][-1]


def test_auc_of_an_evaluation_set_is_exact_and_that_of_train_is_told_to_be_approximate() -> None:
    frames = {"train": classes(), "valid": classes(200, seed=1)}
    params = {"objective": "binary", "metric": "auc", **EXACT}
    _, history = alone(frames, "y", params, 5)
    trainer = quick_trainer(frames, params=params)
    with pytest.warns(UserWarning, match=r"auc.*'train'.*approximate"):
        result = trainer.fit()
    assert rows_of(result, "valid-auc") == pytest.approx(history["valid"]["auc"], rel=1e-9)
    assert result.metrics["train-auc"] == pytest.approx(history["train"]["auc"][-1], abs=0.1)


@pytest.mark.slow
def test_voting_trains_too() -> None:
    params = {"objective": "regression", "tree_learner": "voting", "metric": "l2"}
    result = quick_trainer({"train": numbers()}, params=params, num_boost_round=20).fit()
    assert result.metrics["train-l2"] < 0.3 * rows_of(result, "train-l2")[0]


def test_an_evaluation_set_with_fewer_rows_than_workers() -> None:
    frames = {"train": numbers(), "valid": numbers(1, seed=5)}
    _, history = alone(frames, "y", {"objective": "regression"}, 5)
    result = quick_trainer(frames, workers=3).fit()
    assert rows_of(result, "valid-l2") == pytest.approx(history["valid"]["l2"], rel=1e-9)


def test_a_worker_without_rows_is_told_about() -> None:
    frame = numbers(4).assign(query=1, y=[0, 1, 2, 1])
    trainer = quick_trainer(
        {"train": frame}, params={"objective": "lambdarank"}, dmatrix_params={"train": {"group": "query"}}
    )
    with pytest.raises(TrainingFailedError, match=r"4 rows.*2 workers") as caught:
        trainer.fit()
    assert isinstance(caught.value.__cause__, DataError)


def test_a_metric_that_is_a_sum_is_counted_once() -> None:
    """Whether the workers have parts of the evaluation set or all of it."""
    frames = {
        name: numbers(300, seed).assign(y=lambda frame: 1 + frame.y.abs())
        for seed, name in enumerate(["train", "valid"])
    }
    params = {"objective": "gamma", "metric": "gamma_deviance"}
    for split in (True, False):
        config = {"valid": DatasetConfig(split=split)}
        result = quick_trainer(frames, params=params, dataset_config=config).fit()
        ratio = frames["valid"].y / result.checkpoint.get_model().predict(frames["valid"].drop(columns="y"))
        expected = 2 * (ratio - np.log(ratio) - 1).sum()
        assert result.metrics["valid-gamma_deviance"] == pytest.approx(expected, rel=1e-6)


class NoteThreads:
    """Writes down how many threads LightGBM uses in each worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, env: Any) -> None:
        text = env.model.model_to_string()
        threads = text[text.index("[num_threads: ") :].partition("]")[0]
        (self.folder / f"rank_{session.get_world_rank()}").write_text(threads)


@pytest.mark.parametrize("given", [{}, pytest.param({"num_threads": 3}, marks=pytest.mark.slow), {"n_jobs": 3}])
def test_workers_share_the_cores_unless_told_otherwise(given: dict[str, int], tmp_path: Path) -> None:
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    params = {"objective": "regression", **given}
    quick_trainer({"train": numbers()}, params=params, num_boost_round=1, callbacks=[NoteThreads(tmp_path)]).fit()
    noted = {path.name: path.read_text() for path in tmp_path.glob("rank_*")}
    expected = f"[num_threads: {next(iter(given.values()), share)}"
    assert noted == {"rank_0": expected, "rank_1": expected}


def test_workers_say_nothing_unless_asked(tmp_path: Path) -> None:
    result = quick_trainer({"train": classes(), "valid": classes(100, 1)}, params={"objective": "binary"}).fit()
    logs = [path.read_text() for path in Path(result.path).glob("logs/*.log")]
    assert len(logs) == 2
    assert "LightGBM" not in "".join(logs)
