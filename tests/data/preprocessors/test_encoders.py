"""Encoders: the same results as scikit-learn's, and what becomes of lists, unseen and missing values."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn import preprocessing as sk

import paceline.data
from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessor import PreprocessorNotFittedException
from paceline.data.preprocessors import Categorizer, LabelEncoder, MultiHotEncoder, OneHotEncoder, OrdinalEncoder

COLORS = ["red", "green", "blue", "dark red"]


def frame(rows: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    return pd.DataFrame(
        {
            "color": rng.choice(COLORS, rows),
            "size": rng.integers(-3, 300, rows),
            "wide": rng.choice([1, 10**12, -(10**15)], rows),
            "weight": rng.choice([0.5, 1.25, 3.0], rows).astype(np.float32),
            "flag": rng.random(rows) < 0.3,
            "x": rng.random(rows),
        }
    )


CATEGORICAL = ["color", "size", "wide", "weight", "flag"]


class TestOrdinalEncoder:
    def test_equals_scikit_learn(self) -> None:
        data = frame()
        result = OrdinalEncoder(CATEGORICAL).fit_transform(paceline.data.from_pandas(data)).to_pandas()
        expected = sk.OrdinalEncoder().fit_transform(data[CATEGORICAL])
        np.testing.assert_array_equal(result[CATEGORICAL].to_numpy(), expected)
        assert (result[CATEGORICAL].dtypes == np.int64).all()
        pd.testing.assert_series_equal(result["x"], data["x"])
        assert list(result.columns) == list(data.columns)

    def test_unseen_and_missing_values_become_nan(self) -> None:
        encoder = OrdinalEncoder(["c"]).fit(paceline.data.from_items([{"c": "a"}, {"c": "b"}]))
        result = encoder.transform_batch({"c": np.array(["b", "new", None], dtype=object)})["c"]
        np.testing.assert_array_equal(result, [1.0, np.nan, np.nan])

    def test_items_of_lists_are_encoded_one_by_one(self) -> None:
        ds = paceline.data.from_items([{"c": ["b", "a"]}, {"c": []}, {"c": ["c"]}])
        encoder = OrdinalEncoder(["c"])
        assert [row["c"] for row in encoder.fit_transform(ds).take_all()] == [[1, 0], [], [2]]
        unseen = encoder.transform_batch(pa.table({"c": [["c", "x"], None]}))
        assert unseen["c"].to_pylist() == [[2, None], None]

    def test_whole_lists_as_categories(self) -> None:
        # ["a,b"] and ["a", "b"] must not be taken for the same.
        lists = [["b"], ["a", "b"], ["a,b"], [], ["a", "b"], ["b", "a"]]
        encoder = OrdinalEncoder(["c"], encode_lists=False)
        result = encoder.fit_transform(paceline.data.from_items([{"c": items} for items in lists])).to_pandas()
        order = sorted({tuple(items) for items in lists})
        assert result["c"].tolist() == [order.index(tuple(items)) for items in lists]
        unseen = encoder.transform_batch(pa.table({"c": [["b", "b"], ["z"], ["b"]]}))
        assert unseen["c"].to_pylist() == [None, None, order.index(("b",))]

    def test_rows_of_arrays_are_lists(self) -> None:
        ds = paceline.data.from_numpy(np.array([[5, 7], [7, 9]]))
        rows = OrdinalEncoder(["data"]).fit_transform(ds).take_all()
        assert [list(row["data"]) for row in rows] == [[0, 1], [1, 2]]

    def test_times_and_dates(self) -> None:
        days = [datetime.date(2024, 1, 3), datetime.date(2024, 1, 1), datetime.date(2024, 1, 3)]
        moments = pd.to_datetime(["2024-01-01 00:00:00.000000001", "2024-01-01", "2024-01-02"], format="ISO8601")
        data = pd.DataFrame({"day": days, "moment": moments})
        result = OrdinalEncoder(["day", "moment"]).fit_transform(paceline.data.from_pandas(data)).to_pandas()
        assert result["day"].tolist() == [1, 0, 1]
        assert result["moment"].tolist() == [1, 0, 2]

    def test_categorical_columns(self) -> None:
        data = pd.DataFrame({"c": pd.Categorical(["b", "a", "b"], categories=["b", "unused", "a"])})
        result = OrdinalEncoder(["c"]).fit_transform(paceline.data.from_pandas(data)).to_pandas()
        assert result["c"].tolist() == [1, 0, 1]

    def test_narrower_and_wider_numbers_than_in_fitting(self) -> None:
        encoder = OrdinalEncoder(["c"]).fit(paceline.data.from_items([{"c": 1}, {"c": 300}]))
        for values in (np.array([1, 2], np.int8), np.array([1, 2], np.uint64), np.array([1.0, 1.5])):
            np.testing.assert_array_equal(encoder.transform_batch({"c": values})["c"], [0, np.nan])

    def test_fractions_are_not_cut_off(self) -> None:
        encoder = OrdinalEncoder(["c"]).fit(paceline.data.from_items([{"c": 1.5}, {"c": 2.0}]))
        np.testing.assert_array_equal(encoder.transform_batch({"c": np.array([1, 2])})["c"], [np.nan, 1])

    def test_data_of_another_kind_than_in_fitting_are_refused(self) -> None:
        encoder = OrdinalEncoder(["c"], encode_lists=False).fit(paceline.data.from_items([{"c": 1}, {"c": 2}]))
        for values, kind in ((["1"], "text"), ([True], "truth values"), ([[1]], "lists")):
            with pytest.raises(DataError, match=rf"OrdinalEncoder.*'c'.*{kind}.*\b1\b"):
                encoder.transform_batch(pa.table({"c": values}))


class TestOneHotEncoder:
    def test_equals_scikit_learn(self) -> None:
        data = frame()
        result = OneHotEncoder(CATEGORICAL).fit_transform(paceline.data.from_pandas(data)).to_pandas()
        reference = sk.OneHotEncoder(sparse_output=False).fit(data[CATEGORICAL])
        names = [
            f"{column}_{value}"
            for column, values in zip(CATEGORICAL, reference.categories_, strict=True)
            for value in values
        ]
        assert list(result.columns) == ["x", *names]
        np.testing.assert_array_equal(result[names].to_numpy(), reference.transform(data[CATEGORICAL]))
        assert (result[names].dtypes == np.int64).all()

    def test_unseen_and_missing_values_are_all_zeros(self) -> None:
        encoder = OneHotEncoder(["c"]).fit(paceline.data.from_items([{"c": "a"}, {"c": "b"}]))
        result = encoder.transform_batch(pd.DataFrame({"c": ["b", "new", None]}, index=[5, 6, 7]))
        assert result.to_dict("list") == {"c_a": [0, 0, 0], "c_b": [1, 0, 0]}
        assert list(result.index) == [5, 6, 7]

    def test_most_frequent_categories(self) -> None:
        values = ["c"] * 3 + ["a"] * 2 + ["b"] * 2 + ["d"]
        encoder = OneHotEncoder(["c"], max_categories={"c": 2})
        result = encoder.fit_transform(paceline.data.from_items([{"c": value} for value in values])).to_pandas()
        assert result.sum().to_dict() == {"c_a": 2, "c_c": 3}
        assert encoder.stats_ == {"unique_values(c)": {"a": 0, "c": 1}}

    def test_names_that_collide(self) -> None:
        with pytest.raises(DataError, match=r"2 columns.*'a_b_c'"):
            OneHotEncoder(["a", "a_b"]).fit(paceline.data.from_items([{"a": "b_c", "a_b": "c"}]))
        ds = paceline.data.from_items([{"a": "b", "a_b": 1}])
        with pytest.raises(DataError, match="'a_b'"):
            OneHotEncoder(["a"]).fit_transform(ds).take_all()


class TestMultiHotEncoder:
    def test_equals_scikit_learn(self) -> None:
        rng = np.random.default_rng(3)
        lists = [rng.choice(COLORS, rng.integers(0, 4), replace=False).tolist() for _ in range(50)]
        ds = paceline.data.from_items([{"c": items, "x": 1} for items in lists])
        batch = MultiHotEncoder(["c"]).fit_transform(ds).take_batch(50)
        np.testing.assert_array_equal(batch["c"], sk.MultiLabelBinarizer().fit_transform(lists))

    def test_items_that_repeat_or_are_unseen(self) -> None:
        encoder = MultiHotEncoder(["c"], max_categories={"c": 2})
        encoder.fit(paceline.data.from_items([{"c": [3, 1]}, {"c": [3, 3, 2]}, {"c": [1]}]))
        result = encoder.transform_batch(pa.table({"c": [[1, 1], [2, 9], None, [3, 1]]}))
        encoded = result["c"].combine_chunks().to_numpy_ndarray()
        assert encoded.tolist() == [[1, 0], [0, 0], [0, 0], [1, 1]]

    def test_single_values_are_lists_of_one(self) -> None:
        ds = paceline.data.from_items([{"c": "b"}, {"c": "a"}])
        np.testing.assert_array_equal(MultiHotEncoder(["c"]).fit_transform(ds).take_batch(2)["c"], [[0, 1], [1, 0]])


class TestLabelEncoder:
    def test_equals_scikit_learn_there_and_back(self) -> None:
        data = frame()
        encoder = LabelEncoder("color")
        encoded = encoder.fit_transform(paceline.data.from_pandas(data))
        result = encoded.to_pandas()
        np.testing.assert_array_equal(result["color"], sk.LabelEncoder().fit_transform(data["color"]))
        back = encoder.inverse_transform(encoded).to_pandas()
        assert back["color"].tolist() == data["color"].tolist()
        assert list(back.columns) == list(data.columns)

    def test_predictions_back_to_labels(self) -> None:
        encoder = LabelEncoder("y").fit(paceline.data.from_items([{"y": "no"}, {"y": "yes"}]))
        assert list(encoder.inverse_transform_batch({"y": np.array([1.0, 0.0])})["y"]) == ["yes", "no"]
        with pytest.raises(DataError, match=r"0 to 2.*0 to 1.*labels"):
            encoder.inverse_transform_batch({"y": np.array([0, 2])})
        with pytest.raises(DataError, match="numbers of labels"):
            encoder.inverse_transform_batch({"y": np.array([0.5])})

    def test_not_fitted(self) -> None:
        ds = paceline.data.from_items([{"y": 1}])
        with pytest.raises(PreprocessorNotFittedException, match="inverse_transform"):
            LabelEncoder("y").inverse_transform(ds)


class TestCategorizer:
    def test_categories_are_the_same_for_all_data(self) -> None:
        data = pd.DataFrame({"c": ["b", None, "a"], "n": [2, 1, 2]})
        categorizer = Categorizer(["c", "n"])
        result = categorizer.fit_transform(paceline.data.from_pandas(data)).to_pandas()
        assert list(result["c"].dtype.categories) == ["a", "b"]
        assert result["c"].tolist()[::2] == ["b", "a"]
        assert result["c"].isna().tolist() == [False, True, False]
        other = categorizer.transform_batch(pd.DataFrame({"c": ["a", "new"], "n": [1, 1]}))
        assert other["c"].dtype == result["c"].dtype
        assert other["n"].dtype == result["n"].dtype
        assert other["c"].isna().tolist() == [False, True]

    def test_given_dtypes_need_no_fitting(self) -> None:
        dtype = pd.CategoricalDtype(["low", "mid", "high"], ordered=True)
        categorizer = Categorizer(["level"], dtypes={"level": dtype})
        assert categorizer.fit_status() == categorizer.FitStatus.NOT_FITTABLE
        result = categorizer.transform(paceline.data.from_items([{"level": "high"}, {"level": "low"}])).to_pandas()
        assert result["level"].dtype.ordered
        assert result["level"].cat.codes.tolist() == [2, 0]

    def test_given_and_learnt_dtypes(self) -> None:
        ordered = pd.CategoricalDtype(ordered=True)
        categorizer = Categorizer(["a", "b"], dtypes={"b": ordered})
        categorizer.fit(paceline.data.from_items([{"a": 1, "b": 2}, {"a": 3, "b": 1}]))
        assert categorizer.stats_["a"] == pd.CategoricalDtype([1, 3])
        assert categorizer.stats_["b"] == pd.CategoricalDtype([1, 2], ordered=True)


@pytest.mark.parametrize(
    "encoder", [OrdinalEncoder(["c"]), OneHotEncoder(["c"]), MultiHotEncoder(["c"]), LabelEncoder("c")], ids=repr
)
class TestEveryEncoder:
    def test_missing_values_are_refused_in_fitting_with_advice(self, encoder: OrdinalEncoder) -> None:
        for values in (["a", None], [1.5, float("nan")]):
            ds = paceline.data.from_arrow(pa.table({"c": values}))
            with pytest.raises(DataError, match=r"(?s)'c'.*1 missing.*SimpleImputer"):
                encoder.fit(ds)
        assert encoder.fit_status() == encoder.FitStatus.NOT_FITTED

    def test_no_rows(self, encoder: OrdinalEncoder) -> None:
        with pytest.raises(DataError, match=r"'c'.*no values"):
            encoder.fit(paceline.data.from_arrow(pa.table({"c": pa.array([], pa.string())})))

    def test_a_column_that_is_not_there(self, encoder: OrdinalEncoder) -> None:
        with pytest.raises(DataError, match=rf"{type(encoder).__name__}.*'c'"):
            encoder.fit(paceline.data.from_items([{"d": 1}]))

    def test_columns_that_have_no_categories(self, encoder: OrdinalEncoder) -> None:
        for values in ([{"k": 1}], [[[1]]]):
            with pytest.raises(DataError, match=r"'c'.*type"):
                encoder.fit(paceline.data.from_arrow(pa.table({"c": values})))


def test_missing_items_and_lists_are_refused_in_fitting() -> None:
    for values in ([["a", None]], [["a"], None]):
        for encoder in (OrdinalEncoder(["c"]), OrdinalEncoder(["c"], encode_lists=False), MultiHotEncoder(["c"])):
            with pytest.raises(DataError, match="1 missing"):
                encoder.fit(paceline.data.from_arrow(pa.table({"c": values})))


def test_what_was_learnt_is_there_to_read() -> None:
    encoder = OrdinalEncoder(["c", "n"]).fit(paceline.data.from_items([{"c": "b", "n": 5}, {"c": "a", "n": 4}]))
    assert encoder.stats_ == {"unique_values(c)": {"a": 0, "b": 1}, "unique_values(n)": {4: 0, 5: 1}}


def test_fitting_anew_does_not_change_what_was_transformed_before() -> None:
    first, second = (paceline.data.from_items([{"c": value} for value in values]) for values in ("ab", "xyb"))
    encoder = OneHotEncoder(["c"])
    before = encoder.fit_transform(first)
    with pytest.warns(UserWarning, match="fitted before"):
        encoder.fit(second)
    assert before.to_pandas().columns.tolist() == ["c_a", "c_b"]
    assert encoder.transform(second).to_pandas().columns.tolist() == ["c_b", "c_x", "c_y"]


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match="columns"):
        OneHotEncoder("c")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"max_categories.*\b3\b"):
        OneHotEncoder(["c"], max_categories=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"max_categories.*'d'"):
        MultiHotEncoder(["c"], max_categories={"d": 3})
    with pytest.raises(ConfigError, match=r"max_categories\['c'\]"):
        OneHotEncoder(["c"], max_categories={"c": 0})
    with pytest.raises(ConfigError, match="label_column"):
        LabelEncoder(["c"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="dtypes"):
        Categorizer(["c"], dtypes={"c": "category"})  # type: ignore[dict-item]
