"""XGBoostPredictor: columns by name, kinds of data, categories, several values per row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xgboost

from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessors import BatchMapper, StandardScaler
from paceline.train.xgboost import XGBoostCheckpoint, XGBoostPredictor


def frame(rows: int = 60) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    return pd.DataFrame({name: generator.normal(size=rows).astype(np.float32) for name in "abc"})


def model_of(rows: pd.DataFrame, **params: object) -> xgboost.Booster:
    matrix = xgboost.DMatrix(rows, (rows.iloc[:, 0] * 3).to_numpy().clip(0, 2).astype(int), enable_categorical=True)
    return xgboost.train({"nthread": 1, **params}, matrix, 4)


@pytest.fixture(scope="module")
def booster() -> xgboost.Booster:
    return model_of(frame())


def test_every_kind_of_data_gives_the_same_predictions(booster: xgboost.Booster) -> None:
    rows = frame()
    expected = booster.predict(xgboost.DMatrix(rows))
    predictor = XGBoostPredictor.from_checkpoint(XGBoostCheckpoint.from_model(booster))
    table = pa.Table.from_pandas(rows, preserve_index=False)
    assert predictor.preferred_batch_format() == "pyarrow"
    np.testing.assert_array_equal(predictor.predict(rows)["predictions"], expected)
    np.testing.assert_array_equal(predictor.predict(table)["predictions"].to_numpy(), expected)
    np.testing.assert_array_equal(predictor.predict(table.to_batches()[0])["predictions"].to_numpy(), expected)
    np.testing.assert_array_equal(predictor.predict(rows.to_numpy()), expected)
    arrays = {name: rows[name].to_numpy() for name in rows}
    np.testing.assert_array_equal(predictor.predict(arrays), expected)


def test_columns_are_found_by_name(booster: xgboost.Booster) -> None:
    rows = frame()
    predictor = XGBoostPredictor(booster)
    mixed = rows[["c", "a", "b"]].assign(other="text")
    np.testing.assert_array_equal(predictor.predict(mixed)["predictions"], predictor.predict(rows)["predictions"])
    with pytest.raises(DataError, match=r"1 of.* 3 features: b\b.*a, c"):
        predictor.predict(rows[["a", "c"]])
    with pytest.raises(DataError, match=r"'b'.*text.*numbers"):
        predictor.predict(rows.assign(b="text"))
    with pytest.raises(DataError, match=r"2 columns.*3 features: a, b, c"):
        predictor.predict(rows[["a", "c"]].to_numpy())


def test_feature_columns_choose(booster: xgboost.Booster) -> None:
    rows = frame().assign(d=1.0)
    predictor = XGBoostPredictor(booster)
    expected = predictor.predict(rows)["predictions"].to_numpy()
    chosen = predictor.predict(rows, feature_columns=["a", "b", "c"])["predictions"]
    np.testing.assert_array_equal(chosen, expected)
    array = rows[["d", "a", "b", "c"]].to_numpy()
    np.testing.assert_array_equal(predictor.predict(array, feature_columns=[1, 2, 3]), expected)
    with pytest.raises(DataError, match=r"feature_columns.*\bx\b.*a, b, c, d"):
        predictor.predict(rows, feature_columns=["a", "x"])
    with pytest.raises(DataError, match=r"2 of.* 3 features: b, c"):
        predictor.predict(rows, feature_columns=["a"])


def test_several_values_per_row_are_several_columns() -> None:
    predictor = XGBoostPredictor(model_of(frame(), objective="multi:softprob", num_class=3))
    predicted = predictor.predict(frame())
    assert list(predicted) == ["predictions_0", "predictions_1", "predictions_2"]
    np.testing.assert_allclose(predicted.sum(axis=1), 1.0, rtol=1e-5)
    by_column = predictor.predict(frame().to_numpy())
    assert {name: values.tolist() for name, values in by_column.items()} == predicted.to_dict("list")
    assert list(predictor.predict({name: column.to_numpy() for name, column in frame().items()})) == list(predicted)


def test_names_of_columns_may_be_numbers() -> None:
    array = frame()[["a", "b", "c"]].to_numpy()
    booster = xgboost.train({}, xgboost.DMatrix(array, label=array[:, 0]), 3)
    expected = booster.predict(xgboost.DMatrix(array))
    predictor = XGBoostPredictor(booster)
    wide = pd.DataFrame(np.column_stack([array, array]))
    np.testing.assert_array_equal(predictor.predict(pd.DataFrame(array))["predictions"], expected)
    np.testing.assert_array_equal(predictor.predict(dict(enumerate(array.T))), expected)
    np.testing.assert_array_equal(predictor.predict(wide, feature_columns=[3, 4, 5])["predictions"], expected)
    np.testing.assert_array_equal(
        predictor.predict(dict(enumerate(wide.to_numpy().T)), feature_columns=[0, 1, 2]), expected
    )


def test_an_array_goes_through_the_preprocessor() -> None:
    array = frame()[["a", "b", "c"]].to_numpy()
    booster = xgboost.train({}, xgboost.DMatrix(array * 2, label=array[:, 0]), 3)
    expected = booster.predict(xgboost.DMatrix(array * 2))
    predictor = XGBoostPredictor(booster, BatchMapper(lambda batch: batch * 2, "numpy"))
    np.testing.assert_array_equal(predictor.predict(array), expected)


def test_what_booster_predict_can_do_works(booster: xgboost.Booster) -> None:
    rows, predictor = frame(), XGBoostPredictor(booster)
    matrix = xgboost.DMatrix(rows)
    margin = predictor.predict(rows, output_margin=True, iteration_range=(0, 2))["predictions"]
    np.testing.assert_array_equal(margin, booster.predict(matrix, output_margin=True, iteration_range=(0, 2)))
    shares = predictor.predict(rows, pred_contribs=True)
    np.testing.assert_array_equal(shares.to_numpy(), booster.predict(matrix, pred_contribs=True))
    rows.loc[0, "a"] = -1.0
    missing = predictor.predict(rows, dmatrix_kwargs={"missing": -1.0})["predictions"]
    np.testing.assert_array_equal(missing, booster.predict(xgboost.DMatrix(rows, missing=-1.0)))


def test_categories_are_found_by_name() -> None:
    rows = frame().assign(kind=pd.Categorical(["x", "y", "z"] * 20))[["a", "kind"]]
    predictor = XGBoostPredictor(model_of(rows))
    expected = predictor.predict(rows)["predictions"]
    renumbered = rows.assign(kind=rows.kind.cat.reorder_categories(["z", "y", "x"]))
    text = rows.assign(kind=rows.kind.astype(str))
    for other in (renumbered, text):
        np.testing.assert_array_equal(predictor.predict(other)["predictions"], expected)
        shares = predictor.predict(other, pred_contribs=True)
        np.testing.assert_allclose(shares.sum(axis=1), expected, rtol=1e-5)
    only_one = predictor.predict(text[1:2])["predictions"]
    np.testing.assert_array_equal(only_one, expected[1:2])
    with pytest.raises(DataError, match=r"'kind'.*category 'w'"):
        predictor.predict(text.assign(kind="w"))


def test_categories_that_are_numbers_in_pandas_keep_their_places() -> None:
    rows = frame().assign(kind=pd.Categorical([30, 10, 20] * 20))[["a", "kind"]]
    model = model_of(rows, max_cat_to_onehot=1)
    predicted = XGBoostPredictor(model).predict(rows)["predictions"]
    np.testing.assert_array_equal(predicted, model.predict(xgboost.DMatrix(rows, enable_categorical=True)))


def test_numbers_as_categories_are_found_by_name_too() -> None:
    rows = pa.table({"code": pa.array([7, 8, 9] * 20).dictionary_encode(), "y": [1.0, 5.0, 3.0] * 20})
    from paceline import data
    from tests.train.xgboost.boosting import quick_trainer

    result = quick_trainer({"train": data.from_arrow(rows)}, num_boost_round=40, inline=True).fit()
    predictor = XGBoostPredictor.from_checkpoint(result.checkpoint)
    np.testing.assert_allclose(predictor.predict({"code": np.array([9, 7])}), [3.0, 1.0], atol=0.1)


def test_the_preprocessor_is_applied(booster: xgboost.Booster) -> None:
    from paceline import data

    rows = frame()
    scaler = StandardScaler(["a"])
    scaled = scaler.fit_transform(data.from_pandas(rows)).to_pandas()
    predictor = XGBoostPredictor.from_checkpoint(XGBoostCheckpoint.from_model(booster, preprocessor=scaler))
    expected = booster.predict(xgboost.DMatrix(scaled.astype(np.float32)))
    np.testing.assert_allclose(predictor.predict(rows)["predictions"], expected, rtol=1e-6)


def test_a_model_without_names_takes_columns_in_order() -> None:
    rows = frame()
    model = xgboost.train({"nthread": 1}, xgboost.DMatrix(rows.to_numpy(), rows["a"]), 3)
    predictor = XGBoostPredictor(model)
    expected = model.predict(xgboost.DMatrix(rows.to_numpy()))
    np.testing.assert_array_equal(predictor.predict(rows)["predictions"], expected)
    np.testing.assert_array_equal(predictor.predict(rows.to_numpy()), expected)


def test_no_rows_and_no_booster() -> None:
    predictor = XGBoostPredictor(model_of(frame()))
    assert len(predictor.predict(frame()[:0])) == 0
    assert predictor.predict(frame()[:0].to_numpy()).shape == (0,)
    with pytest.raises(ConfigError, match=r"xgboost\.Booster.*str"):
        XGBoostPredictor("model")  # type: ignore[arg-type]
