"""What columns of all kinds become, in training and in prediction."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from paceline import data
from paceline.air.errors import DataError, TrainingFailedError
from paceline.data.tensors import tensor_array
from paceline.train.lightgbm import LightGBMPredictor
from paceline.train.lightgbm.features import Features, describe_features
from tests.train.lightgbm.boosting import EXACT, numbers, quick_trainer, rows_of


def described(columns: dict[str, Any]) -> tuple[Features, pa.Table]:
    table = pa.table(columns)
    features = describe_features(table, (), "The table")
    return features, features.table(table, "The table")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, None, 3], pa.int8()), [1, None, 3]),
        (pa.array([True, None, False]), [True, None, False]),
        (pa.array(np.array([1.5, 2.5, 3.5], np.float16)), [1.5, 2.5, 3.5]),
        (pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("3")]), [1.25, None, 3.0]),
        (pa.nulls(3), [None, None, None]),
    ],
)
def test_numbers_of_all_kinds_are_taken(column: pa.Array, expected: list[Any]) -> None:
    features, table = described({"x": column})
    assert table.column("x").to_pylist() == expected
    matrix = features.matrix(pa.table({"x": column}), "The table")
    assert [None if np.isnan(value) else value for value in matrix[:, 0]] == expected


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
)
def test_text_becomes_numbers_of_categories(kind: pa.DataType) -> None:
    values = pa.chunked_array([pa.array(["b", None], pa.string()), pa.array(["a", "b"], pa.string())])
    features, table = described({"x": values.cast(kind)})
    assert features.categories == {"x": ("a", "b")}
    assert features.categorical == [0]
    assert table.column("x").to_pylist() == [1, None, 0, 1]
    later = features.table(pa.table({"x": pa.array(["c", "a"])}), "Other data")
    assert later.column("x").to_pylist() == [None, 0]  # "c" was not there in training
    assert Features.from_json(features.to_json()) == features


def test_numbers_of_a_dictionary_are_categories_too() -> None:
    features, table = described({"x": pa.array([30, 10, 30]).dictionary_encode()})
    assert features.categories == {"x": (10, 30)}
    assert table.column("x").to_pylist() == [1, 0, 1]


def test_vectors_become_a_feature_per_element() -> None:
    vectors = pa.array([[1.0, 2.0], None, [5.0, 6.0]], pa.list_(pa.float64(), 2))
    images = tensor_array(np.arange(12).reshape(3, 2, 2))
    features, table = described({"v": vectors, "image": images})
    assert features.names == ["v_0", "v_1", "image_0", "image_1", "image_2", "image_3"]
    assert table.column("v_1").to_numpy().tolist() == pytest.approx([2.0, np.nan, 6.0], nan_ok=True)
    assert table.column("image_2").to_pylist() == [2, 6, 10]


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pa.array([datetime.date(2024, 1, 1)]), "'x'.*date32"),
        (pa.array([datetime.datetime(2024, 1, 1)]), "'x'.*timestamp"),
        (pa.array([[1.0, 2.0]]), "'x'.*list"),
        (pa.array([{"a": 1}]), "'x'.*struct"),
        (pa.array([b"x"]), "'x'.*binary"),
        (pa.array([1.5]).dictionary_encode(), "'x'.*double"),
    ],
)
def test_what_lightgbm_cannot_take_is_refused_by_name(column: pa.Array, told: str) -> None:
    with pytest.raises(DataError, match=told):
        described({"good": pa.array([1]), "x": column})


# -- in a run ---------------------------------------------------------------------------------------


def with_categories() -> pd.DataFrame:
    """Sorted: each worker has other categories. Their order says nothing about the label."""
    generator = np.random.default_rng(0)
    names = np.array(["kiwi", "apple", "plum", "fig", "pear", "date"])
    effect = dict(zip(names, [5.0, -3.0, 4.0, -2.0, 0.0, 9.0], strict=True))
    frame = pd.DataFrame({"fruit": np.repeat(names, 100), "x": generator.normal(size=600)})
    return frame.assign(y=frame.fruit.map(effect) + frame.x)


def test_categories_have_the_same_numbers_on_all_workers() -> None:
    frame = with_categories()
    datasets = {"train": data.from_pandas(frame), "valid": data.from_pandas(frame.sample(60, random_state=0))}
    params = {"objective": "regression", "learning_rate": 0.3, "min_data_per_group": 1, "cat_smooth": 0, **EXACT}
    result = quick_trainer(datasets, params=params, num_boost_round=40).fit()
    assert result.metrics["valid-l2"] < 0.2
    booster = result.checkpoint.get_model()
    assert booster.trees_to_dataframe().decision_type.eq("==").any()
    single = quick_trainer(datasets, params=params, num_boost_round=40, inline=True).fit()
    assert rows_of(result, "valid-l2")[:20] == pytest.approx(rows_of(single, "valid-l2")[:20], rel=1e-6)
    predictor = LightGBMPredictor.from_checkpoint(result.checkpoint)
    shuffled = frame.sample(frac=1.0, random_state=1)[["x", "fruit", "y"]]
    predicted = predictor.predict(shuffled)
    assert float(((predicted.predictions - shuffled.y) ** 2).mean()) == pytest.approx(
        result.metrics["train-l2"], rel=1e-6
    )
    unknown = predictor.predict(pd.DataFrame({"fruit": ["tomato", None], "x": [0.0, 0.0]}))
    assert unknown.predictions.nunique() == 1


@pytest.mark.parametrize(
    ("workers", "filled"),
    [
        (2, range(300, 600)),
        pytest.param(2, [], marks=pytest.mark.slow),
        pytest.param(1, range(300, 600), marks=pytest.mark.slow),
        pytest.param(1, [], marks=pytest.mark.slow),
    ],
)
def test_a_column_of_text_that_some_workers_or_all_see_empty(workers: int, filled: Sequence[int]) -> None:
    frame = numbers(600)
    frame["c"] = pd.Series([("a", "b")[row % 2] if row in filled else None for row in range(600)], dtype="str")
    result = quick_trainer({"train": frame}, workers=workers).fit()
    predicted = LightGBMPredictor.from_checkpoint(result.checkpoint).predict(frame)
    assert float(((predicted.predictions - frame.y) ** 2).mean()) == pytest.approx(result.metrics["train-l2"])


def test_values_of_another_type_than_the_categories_are_told() -> None:
    features, _ = described({"x": pa.array(["a", "b"])})
    with pytest.raises(DataError, match=r"'x'.*int64.*categories"):
        features.table(pa.table({"x": [1, 2]}), "Other data")


@pytest.mark.parametrize(
    "said",
    [
        {"dmatrix_params": {"train": {"categorical_feature": ["code"]}}},
        {"dmatrix_params": {"train": {"categorical_feature": [1]}}},
        {"params": {"categorical_feature": "name:code"}},
        {"params": {"cat_feature": "1"}},
    ],
)
def test_numbers_can_be_declared_to_be_categories(said: dict[str, Any]) -> None:
    frame = with_categories()
    frame = frame.assign(code=frame.fruit.astype("category").cat.codes).drop(columns="fruit")[["x", "code", "y"]]
    params = {"objective": "regression", **said.get("params", {})}
    arguments = {name: value for name, value in said.items() if name != "params"}
    result = quick_trainer({"train": frame}, params=params, inline=True, **arguments).fit()
    assert result.checkpoint.get_model().trees_to_dataframe().decision_type.eq("==").any()


def test_columns_are_left_out_and_features_renamed() -> None:
    frame = numbers(100).assign(day=pd.Timestamp("2024-01-01"))
    settings = {"ignore": ["day", "f4"], "feature_name": ["a", "b", "c", "d"], "free_raw_data": False}
    result = quick_trainer({"train": frame}, inline=True, dmatrix_params={"train": settings}).fit()
    assert result.checkpoint.get_model().feature_name() == ["a", "b", "c", "d"]
    predictor = LightGBMPredictor.from_checkpoint(result.checkpoint)
    assert len(predictor.predict(frame)) == 100


@pytest.mark.parametrize(
    ("changes", "settings", "told"),
    [
        ({"y": lambda frame: frame.y.where(frame.index != 7)}, {}, "'y' .label_column.*1 rows"),
        ({"y": "text"}, {}, "'y' .label_column.*string.*LabelEncoder"),
        ({"w": None}, {"weight": "w"}, "'w' .weight.*100 rows"),
        ({"y": float("inf")}, {}, "'y' .label_column.*infinite"),
        ({"w": float("inf")}, {"weight": "w"}, "'w' .weight.*infinite"),
        ({"a\tb": 1.0}, {}, "features.*'a.tb'"),
        ({"": 1.0}, {}, "features.*''"),
        ({"a[0]": 1.0}, {}, "features.*'a.0.'.*feature_name"),
        ({"a b": 1.0, "a_b": 2.0}, {}, "features.*'a b', 'a_b'"),
        ({}, {"ignore": "f9"}, "column 'f9'"),
        ({"day": pd.Timestamp("2024-01-01")}, {}, "'day'.*timestamp"),
        ({}, {"ignore": ["f9"]}, "column 'f9'"),
        ({}, {"categorical_feature": ["f9"]}, "categorical_feature.*'f9'.*f0, f1"),
        ({}, {"feature_name": ["a"]}, "feature_name.*5 names"),
    ],
)
def test_bad_columns_are_named(changes: dict[str, Any], settings: dict[str, Any], told: str) -> None:
    frame = numbers(100).assign(**changes)
    trainer = quick_trainer({"train": frame}, inline=True, dmatrix_params={"train": settings})
    with pytest.raises((DataError, TrainingFailedError), match=told):
        trainer.fit()
