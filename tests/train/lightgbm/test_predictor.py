"""LightGBMPredictor: columns by name, kinds of data, categories, several values per row."""

from __future__ import annotations

import pickle
from pathlib import Path

import lightgbm
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessors import BatchMapper, StandardScaler
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.lightgbm import LightGBMCheckpoint, LightGBMPredictor
from tests.train.lightgbm.boosting import QUIET, numbers, quick_trainer

FRAME = numbers(200)
FEATURES = FRAME.drop(columns="y")


@pytest.fixture(scope="module")
def booster() -> lightgbm.Booster:
    return lightgbm.train({"objective": "regression", **QUIET}, lightgbm.Dataset(FEATURES, FRAME.y), 6)


@pytest.fixture(scope="module")
def classifier() -> lightgbm.Booster:
    classes = np.digitize(FRAME.y, [0.5, 1.5])
    params = {"objective": "multiclass", "num_class": 3, **QUIET}
    return lightgbm.train(params, lightgbm.Dataset(FEATURES, classes), 3)


def test_every_kind_of_data_gives_the_same_predictions(booster: lightgbm.Booster) -> None:
    expected = booster.predict(FEATURES)
    predictor = LightGBMPredictor(booster)
    frame = FRAME.set_index(np.arange(200) + 1000)[["y", "f3", "f1", "f0", "f2", "f4"]]  # another order, one more
    answer = predictor.predict(frame)
    assert list(answer.columns) == ["predictions"]
    assert list(answer.index) == list(frame.index)
    assert answer.predictions.tolist() == expected.tolist()
    table = predictor.predict(pa.Table.from_pandas(frame, preserve_index=False))
    assert table.column("predictions").to_pylist() == expected.tolist()
    batch = predictor.predict(pa.RecordBatch.from_pandas(frame, preserve_index=False))
    assert isinstance(batch, pa.RecordBatch)
    arrays = predictor.predict({name: frame[name].to_numpy() for name in frame})
    assert arrays.tolist() == expected.tolist()
    assert predictor.predict(FEATURES.to_numpy()).tolist() == expected.tolist()


def test_several_values_per_row(classifier: lightgbm.Booster) -> None:
    predictor = LightGBMPredictor(classifier)
    answer = predictor.predict(FEATURES)
    assert list(answer.columns) == ["predictions_0", "predictions_1", "predictions_2"]
    assert np.allclose(answer.sum(axis=1), 1)
    by_column = predictor.predict(FEATURES.to_numpy())
    assert {name: values.tolist() for name, values in by_column.items()} == answer.to_dict("list")


def test_names_of_columns_may_be_numbers(booster: lightgbm.Booster) -> None:
    array = FEATURES.to_numpy()
    nameless = lightgbm.train({"verbose": -1}, lightgbm.Dataset(array, label=array[:, 0]), 2)
    predictor, expected = LightGBMPredictor(nameless), nameless.predict(array).tolist()
    assert predictor.predict(pd.DataFrame(array)).predictions.tolist() == expected
    assert predictor.predict(dict(enumerate(array.T))).tolist() == expected
    wide = np.column_stack([array, array])
    chosen = list(range(5, 10))
    assert predictor.predict(wide, feature_columns=chosen).tolist() == expected
    assert predictor.predict(pd.DataFrame(wide), feature_columns=chosen).predictions.tolist() == expected


def test_an_array_goes_through_the_preprocessor(booster: lightgbm.Booster) -> None:
    predictor = LightGBMPredictor(booster, BatchMapper(lambda frame: frame * 2, "pandas"))
    assert predictor.predict(FEATURES.to_numpy() / 2).tolist() == booster.predict(FEATURES).tolist()


def test_keywords_go_to_the_booster(booster: lightgbm.Booster) -> None:
    predictor = LightGBMPredictor(booster)
    leaves = predictor.predict(FEATURES, pred_leaf=True)
    assert leaves.shape == (200, 6)
    few = predictor.predict(FEATURES, num_iteration=2)
    assert few.predictions.tolist() == booster.predict(FEATURES, num_iteration=2).tolist()


def test_no_rows_give_no_predictions(classifier: lightgbm.Booster) -> None:
    predictor = LightGBMPredictor(classifier)
    assert predictor.predict(FEATURES[:0]).shape == (0, 3)
    assert predictor.predict(pa.Table.from_pandas(FEATURES[:0])).column_names == [f"predictions_{n}" for n in range(3)]


def test_columns_can_be_chosen(booster: lightgbm.Booster) -> None:
    predictor = LightGBMPredictor(booster)
    renamed = FRAME.rename(columns={f"f{index}": f"g{index}" for index in range(5)})
    answer = predictor.predict(renamed, feature_columns=[f"g{index}" for index in range(5)])
    assert answer.predictions.tolist() == booster.predict(FEATURES).tolist()
    with pytest.raises(DataError, match="'g9'"):
        predictor.predict(renamed, feature_columns=["g9"])
    with pytest.raises(DataError, match=r"'f2'.*f0, f1"):
        predictor.predict(FEATURES[["f0", "f1"]])


def test_a_model_trained_on_categories_of_pandas_knows_them() -> None:
    frame = pd.DataFrame({"c": pd.Categorical(list("abcd") * 50), "x": FRAME.f0})
    params = {"objective": "regression", **QUIET, "min_data_per_group": 1, "cat_smooth": 0}
    model = lightgbm.train(params, lightgbm.Dataset(frame, frame.c.cat.codes * 1.0), 5)
    reordered = frame.assign(c=pd.Categorical(frame.c, categories=list("dcba")))[["x", "c"]]
    predictor = LightGBMPredictor(model)
    assert predictor.predict(reordered).predictions.tolist() == model.predict(frame).tolist()
    few = frame[frame.c.isin(["c", "d"])]  # numbered by themselves, they would be taken for "a" and "b"
    expected = model.predict(few).tolist()
    as_text = few.assign(c=few.c.astype(str))
    for given in (few, as_text):
        table = pa.Table.from_pandas(given, preserve_index=False)
        assert predictor.predict(table).column("predictions").to_pylist() == expected
    assert predictor.predict({"c": as_text.c.to_numpy(), "x": few.x.to_numpy()}).tolist() == expected
    assert predictor.predict(few[:0]).shape == (0, 1)
    missing = model.predict(few[:1].assign(c=pd.Categorical([None], list("abcd")))).tolist()
    assert predictor.predict(few[:1].assign(c=np.nan)).predictions.tolist() == missing
    with pytest.raises(DataError, match=r"0 columns.*categories.*1"):
        predictor.predict(few.assign(c=1.0))
    with pytest.raises(DataError, match="column 'c'"):
        predictor.predict(few[["x"]])


def test_columns_of_other_names_are_not_taken_by_their_position(booster: lightgbm.Booster) -> None:
    renamed = FEATURES.rename(columns={"f0": "F0"})[["f4", "f3", "f2", "f1", "F0"]]
    with pytest.raises(DataError, match="column 'f0'"):
        LightGBMPredictor(booster).predict(renamed)
    nameless = lightgbm.train({"objective": "regression", **QUIET}, lightgbm.Dataset(FEATURES.to_numpy(), FRAME.y), 6)
    assert LightGBMPredictor(nameless).predict(FEATURES).predictions.tolist() == nameless.predict(FEATURES).tolist()


def test_names_with_spaces_which_lightgbm_changes() -> None:
    spaced = FEATURES.rename(columns={"f0": "f 0"})
    model = lightgbm.train({"objective": "regression", **QUIET}, lightgbm.Dataset(spaced, FRAME.y), 6)
    answer = LightGBMPredictor(model).predict(spaced[spaced.columns[::-1]])
    assert answer.predictions.tolist() == model.predict(spaced).tolist()


def test_text_is_not_taken_for_categories_that_the_model_has_not(booster: lightgbm.Booster) -> None:
    with pytest.raises(DataError, match=r"'f0'.*string"):
        LightGBMPredictor(booster).predict(FEATURES.astype({"f0": str}))


def test_vectors_are_the_features_that_are_named_after_them(booster: lightgbm.Booster) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(FEATURES[["f0", "f1"]].to_numpy().ravel()), 2)
    rest = {name: FEATURES[name] for name in ("f2", "f3", "f4")}
    renamed = FEATURES.rename(columns={"f0": "v_0", "f1": "v_1"})
    model = lightgbm.train({"objective": "regression", **QUIET}, lightgbm.Dataset(renamed, FRAME.y), 6)
    answer = LightGBMPredictor(model).predict(pa.table({**rest, "v": vectors}))
    assert answer.column("predictions").to_pylist() == model.predict(renamed).tolist()


def test_arrays_of_another_width(booster: lightgbm.Booster) -> None:
    predictor = LightGBMPredictor(booster)
    assert predictor.predict(FEATURES.to_numpy()[:0]).shape == (0,)
    with pytest.raises(DataError, match=r"2 columns.*5 features"):
        predictor.predict(FEATURES.to_numpy()[:, :2])


def test_a_column_of_categories_that_has_no_value() -> None:
    frame = pd.DataFrame({"c": list("abc") * 40, "x": np.arange(120.0), "y": np.arange(120.0) % 3})
    result = quick_trainer({"train": frame}, inline=True).fit()
    predictor = LightGBMPredictor.from_checkpoint(result.checkpoint)
    for missing in (pa.nulls(1, pa.string()), pa.nulls(1, pa.float64()), pa.nulls(1)):
        answer = predictor.predict(pa.table({"c": missing, "x": [5.0]})).column("predictions").to_pylist()
        assert answer == result.checkpoint.get_model().predict(np.array([[np.nan, 5.0]])).tolist()


def test_categories_need_names() -> None:
    frame = pd.DataFrame({"c": list("ab") * 50, "x": np.arange(100.0), "y": np.arange(100.0) % 2})
    result = quick_trainer({"train": frame}, inline=True).fit()
    predictor = LightGBMPredictor.from_checkpoint(result.checkpoint)
    with pytest.raises(ConfigError, match=r"categories \(c\).*name"):
        predictor.predict(frame[["x", "x"]].to_numpy())


def test_the_preprocessor_of_the_training_is_applied(tmp_path: Path) -> None:
    frame = FRAME.assign(f0=FRAME.f0 * 100 + 7)
    trainer = quick_trainer({"train": frame}, inline=True, preprocessor=StandardScaler(["f0"]))
    result = trainer.fit()
    predictor = LightGBMPredictor.from_checkpoint(result.checkpoint)
    scaled = (frame.f0 - frame.f0.mean()) / frame.f0.std(ddof=0)
    expected = result.checkpoint.get_model().predict(FEATURES.assign(f0=scaled))
    assert predictor.predict(frame).predictions.tolist() == pytest.approx(expected.tolist(), rel=1e-9)


def test_a_dataset_is_predicted_in_batches(booster: lightgbm.Booster) -> None:
    from paceline import data

    checkpoint = LightGBMCheckpoint.from_model(booster)
    answer = BatchPredictor.from_checkpoint(checkpoint, LightGBMPredictor).predict(
        data.from_pandas(FRAME), batch_size=64, keep_columns=["y"]
    )
    frame = answer.to_pandas()
    assert frame.predictions.tolist() == booster.predict(FEATURES).tolist()
    assert frame.y.tolist() == FRAME.y.tolist()


def test_a_predictor_is_not_pickled(booster: lightgbm.Booster) -> None:
    with pytest.raises(TypeError, match="from_checkpoint"):
        pickle.dumps(LightGBMPredictor(booster))
