"""Whole datasets predicted by models of each library, as the library itself would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_breast_cancer, load_iris

from paceline import data
from paceline.air.checkpoint import Checkpoint
from paceline.data.preprocessors import StandardScaler
from paceline.train.batch_predictor import BatchPredictor


def cancer() -> pd.DataFrame:
    frame: pd.DataFrame = load_breast_cancer(as_frame=True).frame
    return frame.rename(columns=lambda name: name.replace(" ", "_"))


def xgboost_case(features: pd.DataFrame, labels: pd.Series, preprocessor: Any) -> tuple[Checkpoint, Any]:
    import xgboost

    from paceline.train.xgboost import XGBoostCheckpoint

    booster = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(features, labels), 5)
    return XGBoostCheckpoint.from_model(booster, preprocessor=preprocessor), lambda frame: booster.inplace_predict(
        frame
    )


def lightgbm_case(features: pd.DataFrame, labels: pd.Series, preprocessor: Any) -> tuple[Checkpoint, Any]:
    import lightgbm

    from paceline.train.lightgbm import LightGBMCheckpoint

    booster = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(features, labels), 5)
    return LightGBMCheckpoint.from_model(booster, preprocessor=preprocessor), booster.predict


def sklearn_case(features: pd.DataFrame, labels: pd.Series, preprocessor: Any) -> tuple[Checkpoint, Any]:
    from sklearn.linear_model import Ridge

    from paceline.train.sklearn import SklearnCheckpoint

    estimator = Ridge().fit(features, labels)
    return SklearnCheckpoint.from_estimator(estimator, preprocessor=preprocessor), estimator.predict


CASES = pytest.mark.parametrize("case", [xgboost_case, lightgbm_case, sklearn_case])


@CASES
@pytest.mark.parametrize("workers", [1, 2])
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


def test_several_values_per_row_are_columns() -> None:
    from sklearn.linear_model import LogisticRegression

    from paceline.train.sklearn import SklearnCheckpoint

    features, labels = load_iris(return_X_y=True, as_frame=True)
    estimator = LogisticRegression(max_iter=1000).fit(features, labels)
    predictor = BatchPredictor(SklearnCheckpoint.from_estimator(estimator))
    found = predictor.predict(data.from_pandas(features), method="predict_proba").to_pandas()
    assert list(found.columns) == ["predictions_0", "predictions_1", "predictions_2"]
    assert np.allclose(found.to_numpy(), estimator.predict_proba(features))
