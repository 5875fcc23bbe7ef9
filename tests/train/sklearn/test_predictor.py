"""SklearnPredictor: every kind of data, and estimators that give other things than one number per row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.cluster import DBSCAN, KMeans
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data import preprocessors
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.predictor import predictor_for
from paceline.train.sklearn import SklearnCheckpoint, SklearnPredictor

IRIS = load_iris(as_frame=True).frame
NAMES = [name for name in IRIS.columns if name != "target"]
FEATURES, LABELS = IRIS[NAMES], IRIS["target"]


@pytest.fixture(scope="module")
def named() -> Any:
    """Fitted with names of columns."""
    return LogisticRegression(max_iter=500).fit(FEATURES, LABELS)


def test_the_answer_is_of_the_kind_that_was_given(named: Any) -> None:
    predictor, expected = SklearnPredictor(named), named.predict(FEATURES)
    shifted = IRIS.set_index(np.arange(len(IRIS)) + 7)
    frame = predictor.predict(shifted)
    assert list(frame.columns) == ["predictions"]
    assert frame.index.equals(shifted.index)
    np.testing.assert_array_equal(frame["predictions"], expected)
    array = predictor.predict(FEATURES.to_numpy())
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, expected)
    columns = predictor.predict({name: IRIS[name].to_numpy() for name in reversed(IRIS.columns)})
    np.testing.assert_array_equal(columns, expected)
    table = predictor.predict(pa.Table.from_pandas(IRIS))
    assert isinstance(table, pa.Table)
    np.testing.assert_array_equal(table["predictions"].to_numpy(), expected)


def test_columns_are_taken_by_name_and_the_rest_is_left_alone(named: Any) -> None:
    mixed = IRIS[["target", *reversed(NAMES)]]
    np.testing.assert_array_equal(SklearnPredictor(named).predict(mixed)["predictions"], named.predict(FEATURES))
    with pytest.raises(DataError, match=r"'petal width \(cm\)'"):
        SklearnPredictor(named).predict(IRIS.drop(columns="petal width (cm)"))
    with pytest.raises(DataError, match=r"\(2, 3\).*4 columns: sepal length"):
        SklearnPredictor(named).predict(np.zeros((2, 3)))


def test_columns_may_be_chosen() -> None:
    nameless = LinearRegression().fit(FEATURES[NAMES[:2]].to_numpy(), LABELS)
    expected = nameless.predict(FEATURES[NAMES[:2]].to_numpy())
    predictor = SklearnPredictor(nameless)
    with pytest.warns(UserWarning, match="X has feature names"):
        np.testing.assert_allclose(predictor.predict(IRIS, feature_columns=NAMES[:2])["predictions"], expected)
    np.testing.assert_allclose(predictor.predict(IRIS.to_numpy(), feature_columns=[0, 1]), expected)
    with pytest.raises(DataError, match=r"feature_columns.*'colour'"):
        predictor.predict(IRIS, feature_columns=["colour"])


def test_probabilities_and_other_methods(named: Any) -> None:
    predictor = SklearnPredictor(named)
    frame = predictor.predict(IRIS, method="predict_proba")
    assert list(frame.columns) == ["predictions_0", "predictions_1", "predictions_2"]
    np.testing.assert_allclose(frame.to_numpy(), named.predict_proba(FEATURES))
    by_column = predictor.predict(FEATURES.to_numpy(), method="decision_function")
    np.testing.assert_allclose(pd.DataFrame(by_column), named.decision_function(FEATURES))
    with pytest.raises(ConfigError, match=r"LogisticRegression.*transform\(\).*\['predict',"):
        predictor.predict(IRIS, method="transform")
    with pytest.raises(ConfigError, match=r"LogisticRegression.*fit\(\)"):
        predictor.predict(IRIS, method="fit")


def test_names_of_columns_may_be_numbers() -> None:
    array = FEATURES.to_numpy()
    predictor = SklearnPredictor(LinearRegression().fit(array, LABELS))
    expected = predictor.predict(array)
    np.testing.assert_allclose(predictor.predict(pd.DataFrame(array))["predictions"], expected)
    np.testing.assert_allclose(predictor.predict(dict(enumerate(array.T))), expected)
    wide = pd.DataFrame(np.column_stack([array, array]))
    np.testing.assert_allclose(predictor.predict(wide, feature_columns=[4, 5, 6, 7])["predictions"], expected)


def test_an_array_goes_through_the_preprocessor(named: Any) -> None:
    double = preprocessors.BatchMapper(lambda array: array * 2, "numpy")
    predicted = SklearnPredictor(named, double).predict(FEATURES.to_numpy() / 2)
    np.testing.assert_array_equal(predicted, named.predict(FEATURES))


def test_text_as_labels() -> None:
    species = np.array(["setosa", "versicolor", "virginica"])[LABELS]
    model = LogisticRegression(max_iter=500).fit(FEATURES, species)
    frame = SklearnPredictor(model).predict(FEATURES)
    assert frame["predictions"].tolist() == model.predict(FEATURES).tolist()
    table = SklearnPredictor(model).predict(pa.Table.from_pandas(FEATURES))
    assert pa.types.is_string(table.schema.field("predictions").type)


def test_several_outputs() -> None:
    targets = np.column_stack([LABELS, LABELS * 2.0])
    line = LinearRegression().fit(FEATURES, targets)
    frame = SklearnPredictor(line).predict(FEATURES)
    assert list(frame.columns) == ["predictions_0", "predictions_1"]
    np.testing.assert_allclose(frame.to_numpy(), line.predict(FEATURES))
    both = MultiOutputClassifier(LogisticRegression(max_iter=500)).fit(FEATURES, (targets > 0).astype(int))
    found = SklearnPredictor(both).predict(FEATURES.to_numpy(), method="predict_proba")
    np.testing.assert_allclose(pd.DataFrame(found), np.hstack(both.predict_proba(FEATURES)))


def test_keywords_go_to_the_method() -> None:
    process = GaussianProcessRegressor(optimizer=None).fit(FEATURES[:40], LABELS[:40])
    mean, deviation = process.predict(FEATURES, return_std=True)
    frame = SklearnPredictor(process).predict(FEATURES, return_std=True)
    np.testing.assert_allclose(frame.to_numpy(), np.column_stack([mean, deviation]))


def test_clusters_and_transformers() -> None:
    clusters = KMeans(3, random_state=0, n_init=2).fit(FEATURES)
    np.testing.assert_array_equal(SklearnPredictor(clusters).predict(FEATURES)["predictions"], clusters.labels_)
    scaler = StandardScaler().fit(FEATURES)
    np.testing.assert_allclose(
        SklearnPredictor(scaler).predict(FEATURES, method="transform").to_numpy(), scaler.transform(FEATURES)
    )
    sparse = OneHotEncoder().fit(LABELS.to_frame())
    found = SklearnPredictor(sparse).predict(IRIS, method="transform")
    np.testing.assert_array_equal(found.to_numpy(), np.eye(3)[LABELS])
    with pytest.raises(ConfigError, match=r"fitted.*estimator"):
        SklearnPredictor(DBSCAN().fit(FEATURES))
    with pytest.raises(ConfigError, match=r"StandardScaler.*predict\(\).*\['transform'\]"):
        SklearnPredictor(scaler).predict(FEATURES)


def test_the_preprocessor_comes_first_and_vectors_are_spread() -> None:
    scale = preprocessors.Chain(
        preprocessors.StandardScaler(NAMES), preprocessors.Concatenator("inputs", include=NAMES)
    )
    scaled = scale.fit_transform(data.from_pandas(IRIS)).to_pandas()
    matrix = pd.DataFrame(np.stack(list(scaled["inputs"])), columns=[f"inputs_{index}" for index in range(4)])
    model = LogisticRegression().fit(matrix, scaled["target"])
    predictor = SklearnPredictor.from_checkpoint(SklearnCheckpoint.from_estimator(model, preprocessor=scale))
    expected = model.predict(matrix)
    np.testing.assert_array_equal(predictor.predict(IRIS)["predictions"], expected)
    columns = predictor.predict({name: IRIS[name].to_numpy() for name in NAMES})
    np.testing.assert_array_equal(columns, expected)


def test_the_number_of_cpus_is_set_on_request() -> None:
    forest = RandomForestClassifier(n_estimators=3, random_state=0).fit(FEATURES, LABELS)
    predictor = SklearnPredictor(forest)
    expected = predictor.predict(IRIS)
    assert forest.n_jobs is None
    pd.testing.assert_frame_equal(predictor.predict(IRIS, num_estimator_cpus=2), expected)
    assert forest.n_jobs == 2
    with pytest.raises(ConfigError, match=r"num_estimator_cpus.*\b0\b"):
        predictor.predict(IRIS, num_estimator_cpus=0)


def test_a_whole_dataset(named: Any) -> None:
    checkpoint = SklearnCheckpoint.from_estimator(named)
    assert predictor_for(checkpoint) is SklearnPredictor
    found = BatchPredictor.from_checkpoint(checkpoint, SklearnPredictor).predict(
        data.from_pandas(IRIS), keep_columns=["target"], batch_size=32, method="predict_proba"
    )
    frame = found.to_pandas()
    np.testing.assert_array_equal(frame["target"], LABELS)
    np.testing.assert_allclose(frame[[f"predictions_{index}" for index in range(3)]], named.predict_proba(FEATURES))


def test_estimators_of_bare_text_are_not_given_the_names_of_columns() -> None:
    """A frame, gone through as a list of texts, is the list of its columns: one answer for any number of rows."""
    texts = np.array(["good day", "bad day"] * 10, dtype=object)
    words = make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts, [1, 0] * 10)
    predictor = SklearnPredictor(words)
    for given in (pd.DataFrame({"text": texts}), {"text": texts}):
        with pytest.raises(DataError, match=r"Pipeline\.predict\(\).*20 rows.*\(1,\)"):
            predictor.predict(given)
    np.testing.assert_array_equal(predictor.predict(texts), [1, 0] * 10)


def test_rows_that_the_estimator_refuses(named: Any) -> None:
    with pytest.raises(DataError, match=r"LogisticRegression\.predict\(\).*NaN"):
        SklearnPredictor(named).predict(FEATURES.assign(**{NAMES[1]: np.nan}))
    with pytest.raises(NotFittedError):
        SklearnPredictor(LogisticRegression()).predict(FEATURES)


def test_a_column_of_nothing_but_nulls_may_be_one_of_text() -> None:
    """So it comes from a request for one row: without a value there is no type."""
    frame = pd.DataFrame({"colour": ["red", "blue", None, "red"], "size": [1.0, 2.0, 3.0, 4.0]})
    encoded = make_column_transformer((OneHotEncoder(), ["colour"]), remainder="passthrough")
    model = make_pipeline(encoded, LinearRegression()).fit(frame, [1.0, 2.0, 3.0, 4.0])
    untyped = pd.DataFrame({"colour": [np.nan], "size": [3.0]})
    assert SklearnPredictor(model).predict(untyped)["predictions"].tolist() == [model.predict(frame)[2]]


def test_of_many_columns_some_are_named() -> None:
    wide = pd.DataFrame(np.eye(40), columns=[f"c{index}" for index in range(40)])
    predictor = SklearnPredictor(LinearRegression().fit(wide, np.arange(40)))
    with pytest.raises(DataError, match=r"'c0'.*'c11' and 27 more.*'c39'"):
        predictor.predict(wide[["c39"]])


@pytest.mark.parametrize("wrong", [LogisticRegression, "model", None])
def test_what_is_no_estimator(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"fitted.*estimator"):
        SklearnPredictor(wrong)


def test_columns_that_are_misspelt_or_hold_text_are_named(named: Any) -> None:
    predictor = SklearnPredictor(named)
    with pytest.raises(DataError, match=r"feature_columns.*'petal lenght.*petal length"):
        predictor.predict(IRIS, feature_columns=["petal lenght (cm)"])
    with pytest.raises(DataError, match=r"numbers.*'sepal width \(cm\)'"):
        predictor.predict(FEATURES.assign(**{"sepal width (cm)": "wide"}))


def test_zero_rows_have_the_columns_and_types_of_others(named: Any) -> None:
    assert list(SklearnPredictor(named).predict(FEATURES.head(0), method="predict_proba")) == [
        "predictions_0",
        "predictions_1",
        "predictions_2",
    ]
    colours = pd.DataFrame({"colour": ["red", "blue", "red"]})
    texts = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(colours, ["a", "b", "a"])
    assert SklearnPredictor(texts).predict(colours.head(0)).shape == (0, 1)
    words = make_pipeline(CountVectorizer(), LogisticRegression()).fit(["red one", "blue"], ["a", "b"])
    assert SklearnPredictor(words).predict(np.array([], dtype=object)).shape == (0,)
    with pytest.raises(NotFittedError):
        SklearnPredictor(LogisticRegression()).predict(FEATURES.head(0))
