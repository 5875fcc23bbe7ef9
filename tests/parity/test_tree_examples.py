"""The guides' examples of tree models and of scikit-learn, and the scores that the libraries reach alone.

The guides name files for the examples; what is written here does what those do: a table of tumours is read and split,
its features are scaled, a model is trained on two workers and predicts rows that it has not seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import accuracy_score, log_loss, ndcg_score, root_mean_squared_error

import paceline
from paceline.air.config import RunConfig, ScalingConfig
from paceline.air.result import Result
from paceline.data import Dataset
from paceline.data.preprocessors import StandardScaler
from paceline.testing.invariants import check_run
from paceline.train.batch_predictor import BatchPredictor
from tests.train.trees.libraries import (
    LIGHTGBM,
    XGBOOST,
    Library,
    Task,
    binary,
    multiclass,
    one_library,
    ranking,
    regression,
    rows_of,
)

QUIET = RunConfig(verbose=0)


@pytest.fixture(scope="module")
def breast_cancer(tmp_path_factory: pytest.TempPathFactory) -> str:
    from sklearn.datasets import load_breast_cancer

    path = tmp_path_factory.mktemp("cancer") / "breast_cancer.csv"
    load_breast_cancer(as_frame=True).frame.to_csv(path, index=False)
    return str(path)


def prepare_data(path: str) -> tuple[Dataset, Dataset, Dataset]:
    """Rows to train on, rows to check with, and rows without a label to predict."""
    dataset = paceline.data.read_csv(path)
    train_dataset, valid_dataset = dataset.train_test_split(test_size=0.3, shuffle=True, seed=1)
    test_dataset = valid_dataset.drop_columns(["target"])
    return train_dataset, valid_dataset, test_dataset


def accuracy_of(predictions: Dataset, valid_dataset: Dataset) -> float:
    """Predictions come in the order of the rows."""
    classes = predictions.to_pandas()["predictions"].round().astype(int)
    return float(accuracy_score(valid_dataset.to_pandas()["target"], classes))


# -- the examples ---------------------------------------------------------------------------


def test_the_xgboost_example(breast_cancer: str, capsys: pytest.CaptureFixture[str]) -> None:
    from paceline.train.xgboost import XGBoostPredictor, XGBoostTrainer

    train_dataset, valid_dataset, test_dataset = prepare_data(breast_cancer)
    preprocessor = StandardScaler(columns=["mean radius", "mean texture"])
    trainer = XGBoostTrainer(
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=QUIET,
        label_column="target",
        num_boost_round=20,
        params={"objective": "binary:logistic", "eval_metric": ["logloss", "error"]},
        datasets={"train": train_dataset, "valid": valid_dataset},
        preprocessor=preprocessor,
    )
    result = trainer.fit()
    print(result.metrics)
    printed = capsys.readouterr().out
    for key in ("train-logloss", "train-error", "valid-logloss", "valid-error"):
        assert f"'{key}': {result.metrics[key]}" in printed
    check_run(result.path, result=result, iterations=20, attempts=1)

    batch_predictor = BatchPredictor.from_checkpoint(result.checkpoint, XGBoostPredictor)
    predictions = batch_predictor.predict(test_dataset)
    predictions.show(2)
    assert "predictions" in capsys.readouterr().out
    assert accuracy_of(predictions, valid_dataset) == pytest.approx(1 - result.metrics["valid-error"])
    assert result.metrics["valid-error"] < 0.06

    contributions = batch_predictor.predict(test_dataset, pred_contribs=True).to_pandas()
    assert contributions.shape == (171, 31)
    assert list(contributions.columns) == [f"predictions_{index}" for index in range(31)]


def test_the_lightgbm_example(breast_cancer: str, capsys: pytest.CaptureFixture[str]) -> None:
    from paceline.train.lightgbm import LightGBMPredictor, LightGBMTrainer

    train_dataset, valid_dataset, test_dataset = prepare_data(breast_cancer)
    preprocessor = StandardScaler(columns=["mean radius", "mean texture"])
    trainer = LightGBMTrainer(
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=QUIET,
        label_column="target",
        num_boost_round=20,
        params={"objective": "binary", "metric": ["binary_logloss", "binary_error"]},
        datasets={"train": train_dataset, "valid": valid_dataset},
        preprocessor=preprocessor,
    )
    result = trainer.fit()
    print(result.metrics)
    printed = capsys.readouterr().out
    for key in ("train-binary_logloss", "train-binary_error", "valid-binary_logloss", "valid-binary_error"):
        assert f"'{key}': {result.metrics[key]}" in printed
    check_run(result.path, result=result, iterations=20, attempts=1)

    batch_predictor = BatchPredictor.from_checkpoint(result.checkpoint, LightGBMPredictor)
    predictions = batch_predictor.predict(test_dataset)
    predictions.show(2)
    assert "predictions" in capsys.readouterr().out
    assert accuracy_of(predictions, valid_dataset) == pytest.approx(1 - result.metrics["valid-binary_error"])
    assert result.metrics["valid-binary_error"] < 0.06


def test_the_sklearn_example(breast_cancer: str, capsys: pytest.CaptureFixture[str]) -> None:
    from paceline.train.sklearn import SklearnPredictor, SklearnTrainer

    train_dataset, valid_dataset, test_dataset = prepare_data(breast_cancer)
    preprocessor = StandardScaler(columns=["mean radius", "mean texture"])
    trainer = SklearnTrainer(
        scaling_config=ScalingConfig(trainer_resources={"CPU": 2}),
        run_config=QUIET,
        label_column="target",
        estimator=RandomForestClassifier(n_estimators=10, random_state=0),
        datasets={"train": train_dataset, "valid": valid_dataset},
        preprocessor=preprocessor,
        cv=5,
        scoring=["accuracy", "roc_auc"],
    )
    result = trainer.fit()
    print(result.metrics)
    assert "'cv': {" in capsys.readouterr().out
    check_run(result.path, result=result, iterations=1, attempts=1)
    assert len(result.metrics["cv"]["test_accuracy"]) == 5
    assert result.metrics["cv"]["test_roc_auc_mean"] > 0.97

    predictions = BatchPredictor.from_checkpoint(result.checkpoint, SklearnPredictor).predict(test_dataset)
    assert accuracy_of(predictions, valid_dataset) == result.metrics["valid"]["test_accuracy"] > 0.93


@one_library
def test_a_model_is_trained_further_from_a_checkpoint(breast_cancer: str, library: Library) -> None:
    """As the guides do it: the same trainer again, from the result's checkpoint, up to more rounds."""
    train_dataset, valid_dataset, _ = prepare_data(breast_cancer)

    def train(rounds: int, **arguments: Any) -> Result:
        result: Result = library.trainer_class(
            label_column="target",
            params=library.params(binary()),
            datasets={"train": train_dataset, "valid": valid_dataset},
            num_boost_round=rounds,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=QUIET,
            **arguments,
        ).fit()
        return result

    first, whole = train(10), train(20)
    further = train(20, resume_from_checkpoint=first.checkpoint)
    assert [len(rows_of(each, library.key(binary()))) for each in (first, further)] == [10, 10]
    assert further.metrics[library.key(binary())] == whole.metrics[library.key(binary())]
    assert library.model_text(further.checkpoint) == library.model_text(whole.checkpoint)


# -- scores ---------------------------------------------------------------------------------


def own_score(task: Task, predicted: np.ndarray) -> float:
    """The task's metric of "valid", by scikit-learn."""
    truth = task.labels("valid").to_numpy()
    if task.name == "regression":
        return float(root_mean_squared_error(truth, predicted))
    if task.name == "ranking":
        gains = 2.0**truth - 1
        queries = task.frames["valid"].groupby("query").indices.values()
        return float(np.mean([ndcg_score([gains[rows]], [predicted[rows]], k=5) for rows in queries]))
    return float(log_loss(truth, predicted))


def as_array(predictions: Dataset) -> np.ndarray:
    values = predictions.to_pandas().to_numpy()
    return np.asarray(values[:, 0] if values.shape[1] == 1 else values)


@pytest.mark.parametrize(
    ("make", "library"),
    [
        (multiclass, XGBOOST),
        (ranking, LIGHTGBM),
        *(pytest.param(make, XGBOOST, marks=pytest.mark.slow) for make in (binary, regression, ranking)),
        *(pytest.param(make, LIGHTGBM, marks=pytest.mark.slow) for make in (binary, multiclass, regression)),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_two_workers_reach_the_scores_of_the_library_alone(make: Any, library: Library, tmp_path: Path) -> None:
    """XGBoost finds the same splits, whoever holds the rows. So does LightGBM for squared errors; for others it
    estimates on several workers how many rows a leaf has, where in one process it counts them."""
    task, rounds = make(), 20
    expected, predicted_alone = library.alone(task, rounds)
    result = library.trainer(task, num_boost_round=rounds, storage_path=str(tmp_path)).fit()
    check_run(result.path, result=result, iterations=rounds, attempts=1)
    found = rows_of(result, library.key(task))

    rows = paceline.data.from_pandas(task.features("valid"))
    predicted = as_array(BatchPredictor.from_checkpoint(result.checkpoint).predict(rows))
    assert predicted.shape == predicted_alone.shape
    assert own_score(task, predicted) == pytest.approx(found[-1], rel=1e-2 if task.name == "ranking" else 1e-5)
    if library is XGBOOST or task.name == "regression":
        assert found == pytest.approx(expected, rel=1e-6)
        np.testing.assert_allclose(predicted, predicted_alone, rtol=1e-4, atol=1e-6)
    elif task.name == "ranking":
        assert found[-1] > 0.99 * expected[-1]
    else:
        assert found[-1] < 1.02 * expected[-1]
