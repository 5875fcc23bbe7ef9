"""Whole datasets predicted by models of each library, as the library itself would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_breast_cancer, load_iris

from paceline import data
from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import ConfigError
from paceline.air.result import Result
from paceline.data.preprocessors import StandardScaler
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.predictor import predictor_for


def cancer() -> pd.DataFrame:
    frame: pd.DataFrame = load_breast_cancer(as_frame=True).frame
    return frame.rename(columns=lambda name: name.replace(" ", "_"))


def xgboost_case(features: pd.DataFrame, labels: pd.Series, preprocessor: Any) -> tuple[Checkpoint, Any]:
    import xgboost

    from paceline.train.xgboost import XGBoostCheckpoint

    booster = xgboost.train({"objective": "binary:logistic", "nthread": 1}, xgboost.DMatrix(features, labels), 5)
    return XGBoostCheckpoint.from_model(booster, preprocessor=preprocessor), lambda frame: booster.inplace_predict(
        frame
    )


def lightgbm_case(features: pd.DataFrame, labels: pd.Series, preprocessor: Any) -> tuple[Checkpoint, Any]:
    import lightgbm

    from paceline.train.lightgbm import LightGBMCheckpoint

    booster = lightgbm.train(
        {"objective": "binary", "verbose": -1, "num_threads": 1}, lightgbm.Dataset(features, labels), 5
    )
    return LightGBMCheckpoint.from_model(booster, preprocessor=preprocessor), booster.predict


def sklearn_case(features: pd.DataFrame, labels: pd.Series, preprocessor: Any) -> tuple[Checkpoint, Any]:
    from sklearn.linear_model import Ridge

    from paceline.train.sklearn import SklearnCheckpoint

    estimator = Ridge().fit(features, labels)
    return SklearnCheckpoint.from_estimator(estimator, preprocessor=preprocessor), estimator.predict


CASES = pytest.mark.parametrize("case", [xgboost_case, lightgbm_case, sklearn_case])
CASES_AND_WORKERS = pytest.mark.parametrize(
    ("case", "workers"),
    [
        *((case, 1) for case in (xgboost_case, lightgbm_case, sklearn_case)),
        *(pytest.param(case, 2, marks=pytest.mark.slow) for case in (xgboost_case, lightgbm_case, sklearn_case)),
    ],
)


@CASES_AND_WORKERS
def test_a_stored_checkpoint_predicts_files_as_the_library_does(case: Any, workers: int, tmp_path: Path) -> None:
    frame = cancer()
    frame["row"] = range(len(frame))
    features = [name for name in frame.columns if name not in ("target", "row")]
    rows = data.from_pandas(frame).repartition(4)
    rows.write_parquet(tmp_path / "rows")
    scaler = StandardScaler(features).fit(rows)
    scaled: Any = scaler.transform_batch(frame[features])
    checkpoint, alone = case(scaled, frame["target"], scaler)
    stored = checkpoint.to_directory(tmp_path / "checkpoint")

    predictor = BatchPredictor(stored)
    result = predictor.predict(
        data.read_parquet(tmp_path / "rows"),
        feature_columns=features,
        keep_columns=["row"],
        batch_size=50,
        min_scoring_workers=workers,
    )
    result.write_parquet(tmp_path / "out")
    written = pq.read_table(tmp_path / "out")
    assert written.column_names == ["predictions", "row"]
    assert written.column("row").to_pylist() == list(range(len(frame)))
    assert np.allclose(written.column("predictions").to_numpy(), alone(scaled), rtol=1e-5, atol=1e-6)


@CASES
def test_columns_that_the_model_was_not_trained_on_are_left_alone(case: Any) -> None:
    frame = cancer()
    features = frame.drop(columns="target")
    checkpoint, alone = case(features, frame["target"], None)
    shuffled = frame[list(reversed(frame.columns))]
    found = BatchPredictor(checkpoint).predict(data.from_pandas(shuffled), keep_columns=["target"]).to_pandas()
    assert np.allclose(found["predictions"], alone(features), rtol=1e-5, atol=1e-6)
    assert found["target"].tolist() == frame["target"].tolist()


@CASES_AND_WORKERS
def test_a_dataset_that_lost_all_its_rows_keeps_the_columns_of_predictions(
    case: Any, workers: int, tmp_path: Path
) -> None:
    frame = cancer()
    checkpoint, _ = case(frame.drop(columns="target"), frame["target"], None)
    none = data.from_pandas(frame).repartition(2).filter(lambda row: False)
    made = BatchPredictor(checkpoint).predict(none, keep_columns=["target"], min_scoring_workers=workers)
    assert made.columns() == ["predictions", "target"]
    made.write_parquet(tmp_path)
    assert pq.read_table(tmp_path).schema.names == ["predictions", "target"]


@CASES
def test_zero_rows_are_answered_with_zero_rows(case: Any) -> None:
    features = cancer().drop(columns="target")
    checkpoint, _ = case(features, cancer()["target"], None)
    predictor = predictor_for(checkpoint).from_checkpoint(checkpoint)
    for nothing in (features.head(0), pa.Table.from_pandas(features.head(0))):
        answer = predictor.predict(nothing)
        assert len(answer) == 0
        assert list(getattr(answer, "column_names", getattr(answer, "columns", None))) == ["predictions"]
    assert predictor.predict(features.to_numpy()[:0]).shape == (0,)


@pytest.mark.parametrize("case", [xgboost_case, lightgbm_case])
def test_keywords_that_the_library_does_not_know_are_refused(case: Any) -> None:
    frame = cancer()
    checkpoint, _ = case(frame.drop(columns="target"), frame["target"], None)
    batches = BatchPredictor(checkpoint)
    with pytest.raises(ConfigError, match=r"'keep_column'.*keep_columns\b"):
        batches.predict(data.from_pandas(frame), keep_column=["target"])
    predictor = predictor_for(checkpoint).from_checkpoint(checkpoint)
    with pytest.raises(ConfigError, match=r"'predict_leaf'.*\bpred_leaf\b"):
        predictor.predict(frame, predict_leaf=True)
    leaves = predictor.predict(frame, pred_leaf=True)
    assert list(leaves) == [f"predictions_{round}" for round in range(5)]


def test_keywords_for_an_estimator() -> None:
    frame = cancer()
    checkpoint, _ = sklearn_case(frame.drop(columns="target"), frame["target"], None)
    with pytest.warns(UserWarning, match=r"'keep_column'.*keep_columns\b"):
        BatchPredictor(checkpoint).predict(data.from_pandas(frame), keep_column=["target"])
    with pytest.raises(ConfigError, match=r"Ridge\.predict\(\).*'return_std'"):
        predictor_for(checkpoint).from_checkpoint(checkpoint).predict(frame, return_std=True)


@CASES
def test_a_predictor_takes_the_place_of_a_checkpoint_too(case: Any, tmp_path: Path) -> None:
    frame = cancer()
    checkpoint, expected = case(frame.drop(columns="target"), frame["target"], None)
    kind = predictor_for(checkpoint)
    path = checkpoint.to_directory(tmp_path / "checkpoint")
    trust = {"trust": True} if case is sklearn_case else {}
    for place in (path, Path(path), f"file://{path}"):
        answer = kind.from_checkpoint(place, **trust).predict(frame)
        np.testing.assert_allclose(answer["predictions"], expected(frame.drop(columns="target")), rtol=1e-6)
    result = Result(checkpoint=checkpoint)
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.from_checkpoint\(result\.checkpoint, \.\.\.\)"):
        kind.from_checkpoint(result)


def test_a_predictor_of_another_library_is_refused_at_once(tmp_path: Path) -> None:
    from paceline.train.lightgbm import LightGBMPredictor

    frame = cancer()
    checkpoint, _ = xgboost_case(frame.drop(columns="target"), frame["target"], None)
    for each in (checkpoint, checkpoint.to_directory(tmp_path / "checkpoint")):
        with pytest.raises(ConfigError, match=r"LightGBMPredictor.*XGBoostPredictor"):
            BatchPredictor(each, LightGBMPredictor)


def test_several_values_per_row_are_columns() -> None:
    from sklearn.linear_model import LogisticRegression

    from paceline.train.sklearn import SklearnCheckpoint

    features, labels = load_iris(return_X_y=True, as_frame=True)
    estimator = LogisticRegression(max_iter=1000).fit(features, labels)
    predictor = BatchPredictor(SklearnCheckpoint.from_estimator(estimator))
    found = predictor.predict(data.from_pandas(features), method="predict_proba").to_pandas()
    assert list(found.columns) == ["predictions_0", "predictions_1", "predictions_2"]
    assert np.allclose(found.to_numpy(), estimator.predict_proba(features))


def test_contributions_to_each_class_are_a_column_of_arrays() -> None:
    import xgboost

    from paceline.train.xgboost import XGBoostCheckpoint, XGBoostPredictor

    iris = load_iris(as_frame=True)
    rows = xgboost.DMatrix(iris.data, iris.target)
    booster = xgboost.train({"objective": "multi:softprob", "num_class": 3}, rows, 2)
    expected = booster.predict(rows, pred_contribs=True)
    predictor = XGBoostPredictor(booster)
    frame = predictor.predict(iris.data, pred_contribs=True)
    np.testing.assert_allclose(np.stack(list(frame["predictions"])), expected)
    columns = {name: iris.data[name].to_numpy() for name in iris.data.columns}
    np.testing.assert_allclose(predictor.predict(columns, pred_contribs=True), expected)
    np.testing.assert_allclose(predictor.predict(iris.data.to_numpy(), pred_contribs=True), expected)
    made = BatchPredictor(XGBoostCheckpoint.from_model(booster)).predict(
        data.from_pandas(iris.data), pred_contribs=True
    )
    np.testing.assert_allclose(np.stack([row["predictions"] for row in made.take_all()]), expected)
