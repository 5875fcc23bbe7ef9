"""What BatchPredictor rejects, before it reads a row, and what it says when a model fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline import data
from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import ConfigError, DataError
from paceline.train.batch_predictor import BatchPredictor
from tests.train.prediction.models import ArrowLine, Line, line_checkpoint, numbers


class Picky(ArrowLine):
    def _predict_arrow(self, data: pa.Table, power: int = 1) -> pa.Table:
        if 150.0 in data.column("x").to_pylist():
            raise ZeroDivisionError("150 is too much")
        return super()._predict_arrow(data)


@pytest.mark.usefixtures("processes_of_failed_predictions_end")
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_model_that_fails_says_on_which_rows(workers: int, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(300.0)}), tmp_path / "part.parquet", row_group_size=100)
    result = BatchPredictor(line_checkpoint(), Picky).predict(
        data.read_parquet(str(tmp_path)), batch_size=20, min_scoring_workers=workers
    )
    message = r"BatchPredictor\(Picky\).*rows 40 to 59 of.*part\.parquet, row group 1.*ZeroDivisionError: 150"
    with pytest.raises(DataError, match=message) as failure:
        result.write_parquet(tmp_path / "out")
    assert type(failure.value.__cause__) is ZeroDivisionError
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.usefixtures("processes_of_failed_predictions_end")
def test_a_worker_process_that_dies_is_an_error_at_once() -> None:
    predictor = BatchPredictor.from_pandas_udf(lambda frame: os._exit(3))  # type: ignore[arg-type, return-value]
    with pytest.raises(DataError, match=r"BatchPredictor\(PandasFunctionPredictor\).*rows .*ended"):
        predictor.predict(numbers(100), min_scoring_workers=2).to_pandas()


def test_a_checkpoint_that_the_predictor_cannot_use_is_told() -> None:
    result = BatchPredictor(Checkpoint.from_dict({"other": 1}), ArrowLine).predict(numbers(3))
    with pytest.raises(DataError, match=r"BatchPredictor\(ArrowLine\).*KeyError: 'slope'"):
        result.to_pandas()


SLIPS: list[tuple[dict[str, Any], str]] = [
    ({"powr": 2}, r"ArrowLine.*'powr'.*\bpower\b"),
    ({"batch_size": 0}, r"batch_size.*\b0\b"),
    ({"batch_size": "large"}, "batch_size.*'large'"),
    ({"min_scoring_workers": 0}, r"min_scoring_workers.*\b0\b"),
    ({"min_scoring_workers": 3, "max_scoring_workers": 2}, r"max_scoring_workers.*\b2\b"),
    ({"num_cpus_per_worker": "two"}, "num_cpus_per_worker.*'two'"),
    ({"num_gpus_per_worker": -1}, "num_gpus_per_worker.*-1"),
    ({"separate_gpu_stage": "no"}, "separate_gpu_stage.*'no'"),
    ({"feature_columns": []}, "feature_columns.*empty"),
    ({"feature_columns": ["x", "x"]}, "feature_columns.*'x'.*twice"),
    ({"keep_columns": [1]}, r"keep_columns.*\b1\b"),
    ({"ray_remote_args": [1]}, "ray_remote_args"),
]


@pytest.mark.parametrize(("settings", "message"), SLIPS, ids=[next(iter(settings)) for settings, _ in SLIPS])
def test_slips_are_told_before_any_row_is_read(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BatchPredictor(line_checkpoint(), ArrowLine).predict(numbers(3), **settings)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    predictor = BatchPredictor(line_checkpoint(), ArrowLine)
    with pytest.raises(ConfigError, match=r"num_gpus_per_worker.*no GPU"):
        predictor.predict(numbers(3), num_gpus_per_worker=1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(ConfigError, match=r"ArrowLine.*GPU"):
        predictor.predict(numbers(3), num_gpus_per_worker=1)
    with pytest.raises(ConfigError, match=r"2 scoring workers.*GPU"):
        predictor.predict(numbers(3), num_gpus_per_worker=1, max_scoring_workers=2)


def test_settings_of_a_scheduler_are_accepted_with_a_warning() -> None:
    predictor = BatchPredictor(line_checkpoint(), ArrowLine)
    with pytest.warns(UserWarning, match="num_cpus_per_worker"):
        predictor.predict(numbers(3), num_cpus_per_worker=2)
    with pytest.warns(UserWarning, match="ray_remote_args"):
        predictor.predict(numbers(3), ray_remote_args={"num_cpus": 1})
    predictor.predict(numbers(3), num_gpus_per_worker=0, ray_remote_args={})


@pytest.mark.parametrize("given", [pd.DataFrame({"x": [1.0]}), {"x": np.ones(1)}, "rows.parquet"])
def test_only_datasets_are_predicted(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"Dataset.*ArrowLine"):
        BatchPredictor(line_checkpoint(), ArrowLine).predict(given)


def test_a_misspelt_keyword_of_the_predictor_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"ArrowLine\.from_checkpoint.*'ofset'.*\boffset\b"):
        BatchPredictor(line_checkpoint(), ArrowLine, ofset=1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [(ArrowLine(), "class.*ArrowLine"), (dict, "Predictor"), (Line(), "class.*Line"), (3, "Predictor")],
)
def test_what_is_no_predictor_class_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BatchPredictor(line_checkpoint(), given)


def test_a_class_without_a_method_is_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"Line.*_predict_"):
        BatchPredictor(line_checkpoint(), Line)
