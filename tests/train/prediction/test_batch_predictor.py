"""BatchPredictor: a prediction for every row of a dataset, in its order, in a stream."""

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
from paceline.data.preprocessors import (
    BatchMapper,
    Chain,
    Concatenator,
    LabelEncoder,
    MinMaxScaler,
    OneHotEncoder,
    StandardScaler,
)
from paceline.train.batch_predictor import BatchPredictor
from tests.train.prediction.models import ArrowLine, ColumnsSeen, Line, NumpyLine, PandasLine, line_checkpoint, numbers

LINES = pytest.mark.parametrize("line", [PandasLine, NumpyLine, ArrowLine])


# -- predictions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "workers"),
    [
        *((line, 1) for line in (PandasLine, NumpyLine, ArrowLine)),
        (ArrowLine, 2),
        *(pytest.param(line, 2, marks=pytest.mark.slow) for line in (PandasLine, NumpyLine)),
    ],
)
def test_every_row_is_predicted_in_order_whoever_does_it(line: type[Line], workers: int) -> None:
    predictor = BatchPredictor(line_checkpoint(), line, offset=1.0)
    result = predictor.predict(
        numbers(1000), feature_columns=["x"], keep_columns=["name"], batch_size=37, min_scoring_workers=workers
    )
    frame = result.to_pandas()
    assert frame["predictions"].tolist() == [2.0 * x + 1.0 for x in range(1000)]
    assert frame["name"].tolist() == [f"row {number}" for number in range(1000)]


def test_other_processes_predict_if_asked_for() -> None:
    predictor = BatchPredictor(Checkpoint.from_dict({}), ColumnsSeen)
    alone = predictor.predict(numbers(100)).to_pandas()["process"]
    assert set(alone) == {os.getpid()}
    others = predictor.predict(numbers(100), max_scoring_workers=2, batch_size=10).to_pandas()["process"]
    assert os.getpid() not in set(others)
    assert 1 <= len(set(others)) <= 2


def test_batches_have_at_most_the_size_that_was_given() -> None:
    predictor = BatchPredictor(Checkpoint.from_dict({}), ColumnsSeen)
    assert predictor.predict(numbers(1000, 1), batch_size=64).to_pandas()["rows"].max() == 64
    assert predictor.predict(numbers(10_000, 1)).to_pandas()["rows"].max() == 4096


def test_a_class_may_have_larger_batches_by_default() -> None:
    class Larger(ColumnsSeen):
        default_batch_size = 8192

    rows = BatchPredictor(Checkpoint.from_dict({}), Larger).predict(numbers(10_000, 1)).to_pandas()["rows"]
    assert rows.max() == 8192


def test_small_chunks_are_joined_to_batches() -> None:
    small = data.range(10_000).map_batches(lambda batch: batch, batch_size=100)
    rows = BatchPredictor(Checkpoint.from_dict({}), ColumnsSeen).predict(small.repartition(1), batch_size=1000)
    assert {row["rows"] for row in rows.take_all()} == {1000}


def test_keywords_reach_the_predictor_and_its_model() -> None:
    frame = BatchPredictor(line_checkpoint(), ArrowLine, offset=1.0).predict(numbers(3), power=2).to_pandas()
    assert frame["predictions"].tolist() == [1.0, 9.0, 25.0]


def test_a_function_of_frames() -> None:
    predictor = BatchPredictor.from_pandas_udf(lambda frame: pd.DataFrame({"predictions": frame["x"] * 3}))
    assert predictor.predict(numbers(4)).to_pandas()["predictions"].tolist() == [0.0, 3.0, 6.0, 9.0]
    assert predictor.predict(numbers(4), min_scoring_workers=2).take(2) == [{"predictions": 0.0}, {"predictions": 3.0}]


def test_windows_are_not_needed() -> None:
    predictor = BatchPredictor.from_checkpoint(line_checkpoint(), ArrowLine)
    result = predictor.predict_pipelined(numbers(4), blocks_per_window=1, keep_columns=["name"])
    assert result.take(1) == [{"predictions": 0.0, "name": "row 0"}]


def test_a_dataset_without_rows_has_no_predictions() -> None:
    empty = data.from_arrow(pa.table({"x": pa.array([], pa.float64())}))
    assert BatchPredictor(line_checkpoint(), ArrowLine).predict(empty).count() == 0


def test_counting_needs_no_predictions() -> None:
    class Never(ArrowLine):
        def _predict_arrow(self, data: pa.Table, power: int = 1) -> pa.Table:
            raise AssertionError("a row was predicted")

    assert BatchPredictor(line_checkpoint(), Never).predict(numbers(11)).count() == 11


def test_nothing_is_loaded_or_read_before_it_is_needed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "x.parquet")

    class Noted(ArrowLine):
        made = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            Noted.made += 1

    def refuse(batch: Any) -> Any:
        raise AssertionError("a row was read")

    BatchPredictor(line_checkpoint(), Noted).predict(data.read_parquet(str(tmp_path)).map_batches(refuse))
    assert Noted.made == 0
    result = BatchPredictor(line_checkpoint(), Noted).predict(data.read_parquet(str(tmp_path)))
    assert result.take_all() == result.take_all() == [{"predictions": 2.0}]
    assert Noted.made == 1  # once per process, not once per pass or batch


def test_reading_a_few_predictions_makes_no_more_than_some(tmp_path: Path) -> None:
    class Counting(ArrowLine):
        rows = 0

        def _predict_arrow(self, data: pa.Table, power: int = 1) -> pa.Table:
            Counting.rows += data.num_rows
            return super()._predict_arrow(data)

    pq.write_table(pa.table({"x": np.arange(1e6)}), tmp_path / "x.parquet", row_group_size=50_000)
    result = BatchPredictor(line_checkpoint(), Counting).predict(data.read_parquet(str(tmp_path)), batch_size=1000)
    assert len(result.take(5)) == 5
    assert Counting.rows <= 300_000


# -- columns ----------------------------------------------------------------------------------


def test_only_the_columns_that_are_needed_are_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0], "y": [2.0], "z": [3.0], "unused": ["?"]}), tmp_path / "x.parquet")
    predictor = BatchPredictor(Checkpoint.from_dict({}), ColumnsSeen)
    rows = data.read_parquet(str(tmp_path))
    result = predictor.predict(rows, feature_columns=["y", "x"], keep_columns=["z"])
    (row,) = result.take_all()
    assert row["columns"] == "y,x"
    assert row["z"] == 3.0
    assert "select" in repr(result)
    (row,) = predictor.predict(rows).take_all()
    assert row["columns"] == "x,y,z,unused"


def test_kept_columns_are_as_the_preprocessor_leaves_them() -> None:
    scaler = MinMaxScaler(["x"]).fit(numbers(3))
    (_, middle, _) = BatchPredictor(line_checkpoint(scaler), ArrowLine).predict(numbers(3), keep_columns="x").take_all()
    assert middle == {"predictions": 1.0, "x": 0.5}


@pytest.mark.parametrize("features", [None, ["x"]])
def test_columns_that_the_preprocessor_makes_or_removes_can_be_kept(features: list[str] | None) -> None:
    rows = data.from_items([{"x": 1.0, "kind": "a"}, {"x": 2.0, "kind": "b"}])
    one_hot = OneHotEncoder(["kind"]).fit(rows)
    predictor = BatchPredictor(line_checkpoint(one_hot), ArrowLine)
    result = predictor.predict(rows, feature_columns=features, keep_columns=["kind_b", "kind"]).to_pandas()
    assert result["kind_b"].tolist() == [0, 1]
    assert result["kind"].tolist() == ["a", "b"]
    with pytest.raises(ConfigError, match=r"keep_columns.*'kind_c'"):
        predictor.predict(rows, keep_columns=["kind_c"])


def test_features_are_chosen_from_what_the_preprocessor_makes() -> None:
    rows = data.from_pandas(pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0], "label": [0, 1]}))
    chain = Chain(StandardScaler(["a", "b"]), Concatenator(include=["a", "b"], output_column_name="features")).fit(rows)
    checkpoint = Checkpoint.from_dict({})
    checkpoint.set_preprocessor(chain)
    predictor = BatchPredictor(checkpoint, ColumnsSeen)
    result = predictor.predict(rows, feature_columns=["features"], keep_columns=["label"]).to_pandas()
    assert result["columns"].tolist() == ["features"] * 2
    assert result["label"].tolist() == [0, 1]
    with pytest.raises(DataError, match=r"feature_columns.*'c'.*preprocessor.*'features'"):
        predictor.predict(rows, feature_columns=["c"]).to_pandas()


def test_features_may_be_what_goes_into_the_preprocessor() -> None:
    rows = data.from_items([{"x": 1.0, "kind": "a", "label": 0}, {"x": 2.0, "kind": "b", "label": 1}])
    checkpoint = Checkpoint.from_dict({})
    checkpoint.set_preprocessor(OneHotEncoder(["kind"]).fit(rows))
    result = BatchPredictor(checkpoint, ColumnsSeen).predict(
        rows, feature_columns=["x", "kind"], keep_columns=["label"]
    )
    assert result.to_pandas()["columns"].tolist() == ["x,kind_a,kind_b"] * 2
    assert result.to_pandas()["label"].tolist() == [0, 1]


def test_a_kept_column_must_not_have_the_name_of_a_prediction() -> None:
    rows = numbers(3).rename_columns({"name": "predictions"})
    result = BatchPredictor(line_checkpoint(), ArrowLine).predict(rows, keep_columns=["predictions"])
    with pytest.raises(DataError, match=r"rename_columns\(\{'predictions'"):
        result.to_pandas()


@pytest.mark.parametrize("name", ["keep_columns", "feature_columns"])
def test_a_column_that_is_not_there_is_told_at_once(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}.*'nmae'"):
        BatchPredictor(line_checkpoint(), ArrowLine).predict(numbers(3), **{name: ["nmae"]})


def test_a_column_to_keep_that_a_function_did_not_make_is_told() -> None:
    made = numbers(3).map_batches(lambda batch: {"x": batch["x"]})
    with pytest.raises(DataError, match=r"keep_columns.*'id'.*\['x'\]"):
        BatchPredictor(line_checkpoint(), ArrowLine).predict(made, keep_columns=["id"]).to_pandas()


def test_a_column_that_the_preprocessor_misses_is_told_at_once() -> None:
    predictor = BatchPredictor(line_checkpoint(MinMaxScaler(["x"]).fit(numbers(3))), ArrowLine)
    with pytest.raises(ConfigError, match=r"MinMaxScaler.*'x'"):
        predictor.predict(numbers(3).drop_columns("x"), feature_columns=["name"])


# -- preprocessors ----------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("features", [None, ["x"]])
def test_the_label_that_a_preprocessor_encodes_need_not_be_there(known: bool, features: list[str] | None) -> None:
    labelled = data.from_items([{"x": 1.0, "kind": "b"}, {"x": 2.0, "kind": "a"}])
    predictor = BatchPredictor(line_checkpoint(LabelEncoder("kind").fit(labelled)), PandasLine)
    rows = numbers(4) if known else numbers(4).map_batches(lambda batch: batch)
    made = predictor.predict(rows, feature_columns=features)
    assert made.to_pandas()["predictions"].tolist() == [0.0, 2.0, 4.0, 6.0]


def test_the_preprocessor_can_be_replaced_and_left_out() -> None:
    scaler = MinMaxScaler(["x"]).fit(numbers(3))
    predictor = BatchPredictor(line_checkpoint(scaler), ArrowLine)
    assert predictor.get_preprocessor() is scaler
    assert predictor.predict(numbers(3)).to_pandas()["predictions"].tolist() == [0.0, 1.0, 2.0]
    predictor.set_preprocessor(None)
    assert predictor.get_preprocessor() is None
    before = predictor.predict(numbers(3))
    predictor.set_preprocessor(MinMaxScaler(["x"]).fit(numbers(5)))
    assert predictor.predict(numbers(3)).to_pandas()["predictions"].tolist() == [0.0, 0.5, 1.0]
    assert before.to_pandas()["predictions"].tolist() == [0.0, 2.0, 4.0]  # what was made before stays


def test_a_preprocessor_must_not_leave_rows_out() -> None:
    predictor = BatchPredictor(line_checkpoint(), ArrowLine)
    predictor.set_preprocessor(BatchMapper(lambda frame: frame[frame["x"] > 0], "pandas"))
    with pytest.raises(DataError, match=r"BatchMapper.*2 rows of 3.*filter"):
        predictor.predict(numbers(3, 1)).to_pandas()


# -- checkpoints ------------------------------------------------------------------------------


def test_a_checkpoint_may_be_named_by_its_place(tmp_path: Path) -> None:
    path = line_checkpoint(MinMaxScaler(["x"]).fit(numbers(3))).to_directory(tmp_path / "checkpoint")
    for place in (path, Path(path), f"file://{path}"):
        result = BatchPredictor(place, ArrowLine).predict(numbers(3))
        assert result.to_pandas()["predictions"].tolist() == [0.0, 1.0, 2.0]


def test_a_result_is_not_its_checkpoint(tmp_path: Path) -> None:
    from paceline import train

    def report(config: dict[str, Any]) -> None:
        train.report({"loss": 1.0}, checkpoint=line_checkpoint())

    trainer = train.DataParallelTrainer(
        report,
        train_loop_config={},
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(verbose=0, engine="inline"),
    )
    result = trainer.fit()
    with pytest.raises(ConfigError, match=r"BatchPredictor\(result\.checkpoint"):
        BatchPredictor(result, ArrowLine)  # type: ignore[arg-type]
    assert result.checkpoint is not None
    assert BatchPredictor(result.checkpoint, ArrowLine).predict(numbers(2)).take_all()[1] == {"predictions": 2.0}


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint.*\b3\b.*Checkpoint"):
        BatchPredictor(3, ArrowLine)  # type: ignore[arg-type]
