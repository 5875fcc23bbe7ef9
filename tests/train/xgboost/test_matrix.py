"""What becomes of columns: categories, weights, queries, vectors, and rows that do not fit into memory."""

from __future__ import annotations

import datetime
import decimal
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xgboost
from sklearn.datasets import load_breast_cancer
from xgboost.callback import TrainingCallback

from paceline import data
from paceline.air.errors import DataError, TrainingFailedError
from paceline.data.preprocessors import Concatenator
from paceline.train.xgboost import XGBoostPredictor, backend, matrix
from paceline.train.xgboost.features import RowValues
from tests.train.xgboost.boosting import FEW_VALUES, quick_trainer, rows_of, trees

SMALL = {**FEW_VALUES, "objective": "reg:squarederror", "max_depth": 3}


def numbers(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame({f"f{index}": generator.integers(0, 30, rows).astype(float) for index in range(4)})
    frame["y"] = frame.f0 * 2.0 - frame.f1 + generator.integers(0, 5, rows)
    return frame


def booster_of(table: pa.Table, label: Any, rounds: int = 5, **matrix: Any) -> xgboost.Booster:
    """XGBoost alone on Arrow columns."""
    train = xgboost.QuantileDMatrix(table, label, enable_categorical=True, nthread=1, max_bin=256, **matrix)
    return xgboost.train(SMALL, train, rounds)


def test_text_columns_are_categories_with_the_same_codes_on_all_workers() -> None:
    """The first half of the rows, which one worker has, holds other values than the second half."""
    generator = np.random.default_rng(0)
    city = np.concatenate([generator.choice(["Rome", "Oslo"], 200), generator.choice(["Bern", "Kyiv", "Oslo"], 200)])
    frame = pd.DataFrame({"city": city, "x": generator.integers(0, 20, 400).astype(float)})
    frame["y"] = frame.city.map({"Rome": 1.0, "Oslo": 7.0, "Bern": 3.0, "Kyiv": 5.0}) + frame.x % 3
    expected = booster_of(
        pa.table({"city": pa.array(frame.city).dictionary_encode(), "x": frame.x.to_numpy()}), frame.y
    )
    valid = frame[:50]
    result = quick_trainer({"train": frame, "valid": valid}, params=SMALL).fit()
    model = result.checkpoint.get_model()
    assert model.feature_types == ["c", "float"]
    columns = frame.assign(city=frame.city.astype("category")).drop(columns="y")
    np.testing.assert_allclose(model.inplace_predict(columns), expected.inplace_predict(columns), rtol=1e-6)
    residuals = model.inplace_predict(columns[:50]) - valid.y.to_numpy()
    assert result.metrics["valid-rmse"] == pytest.approx(float(np.sqrt((residuals**2).mean())), rel=1e-5)


def test_dictionary_columns_may_differ_from_block_to_block(tmp_path: Path) -> None:
    values = [["a", "b"], ["c", "b"], ["d"], ["a", "d"]]
    for index, names in enumerate(values):
        column = pa.array(names * 10).dictionary_encode()
        label = [float(ord(name)) for name in names * 10]
        pq.write_table(pa.table({"c": column, "y": label}), tmp_path / f"{index}.parquet")
    dataset = data.read_parquet(str(tmp_path))
    result = quick_trainer({"train": dataset}, params={**SMALL, "max_depth": 6}, num_boost_round=60, inline=True).fit()
    predicted = XGBoostPredictor.from_checkpoint(result.checkpoint).predict(pd.DataFrame({"c": ["a", "b", "c", "d"]}))
    np.testing.assert_allclose(predicted["predictions"], [ord(name) for name in "abcd"], atol=0.5)


def test_weights_count_as_copies_of_rows() -> None:
    frame = numbers()
    frame["w"] = np.where(frame.f0 > 15, 3.0, 1.0)
    entries = {"train": {"weight": "w"}}
    weighted = quick_trainer({"train": frame}, params=SMALL, dmatrix_params=entries, inline=True).fit()
    copies = frame.loc[frame.index.repeat(frame.w.astype(int))].drop(columns="w")
    copied = quick_trainer({"train": copies}, params={**SMALL, "min_child_weight": 1}, inline=True).fit()
    assert rows_of(weighted, "train-rmse") == pytest.approx(rows_of(copied, "train-rmse"), rel=1e-5)
    assert weighted.checkpoint.get_model().feature_names == ["f0", "f1", "f2", "f3"]


def ranking() -> pd.DataFrame:
    """Queries of several lengths whose names are text and not sorted."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 15, 60)
    names = [f"q{number}" for number in generator.permutation(60)]
    frame = pd.DataFrame({f"f{index}": generator.integers(0, 30, lengths.sum()).astype(float) for index in range(4)})
    frame["query"] = np.repeat(names, lengths)
    frame["y"] = np.clip((frame.f0 / 10).astype(int) + generator.integers(0, 2, len(frame)), 0, 4)
    return frame


@pytest.mark.parametrize("external", [pytest.param(False, marks=pytest.mark.slow), True])
def test_ranking_reaches_the_scores_of_the_library(external: bool) -> None:
    frame = ranking()
    params = {
        **FEW_VALUES,
        "objective": "rank:ndcg",
        "eval_metric": ["ndcg@5", "ndcg"],
        "lambdarank_pair_method": "topk",
    }
    lengths = frame.groupby("query", sort=False).size().to_numpy()
    train = xgboost.QuantileDMatrix(frame[["f0", "f1", "f2", "f3"]], frame.y, group=lengths, nthread=1)
    history: dict[str, Any] = {}
    xgboost.train(params, train, 10, evals=[(train, "train")], evals_result=history, verbose_eval=False)
    entries = {"qid": "query", **({"external_memory": True} if external else {})}
    result = quick_trainer(
        {"train": frame, "valid": frame},
        params=params,
        num_boost_round=10,
        dmatrix_params={"train": entries, "valid": entries},
    ).fit()
    assert result.metrics["train-ndcg@5"] == pytest.approx(history["train"]["ndcg@5"][-1], abs=0.02)
    assert result.metrics["valid-ndcg@5"] == pytest.approx(result.metrics["train-ndcg@5"], rel=1e-6)
    assert result.metrics["train-ndcg@5"] > 0.8


def test_weights_of_a_ranking_are_those_of_queries() -> None:
    frame = ranking()
    frame["w"] = frame["query"].str.len().astype(float)
    entries = {"train": {"qid": "query", "weight": "w"}}
    settings = {"params": {"objective": "rank:pairwise"}, "dmatrix_params": entries, "inline": True}
    quick_trainer({"train": frame}, **settings).fit()
    frame["w"] = np.arange(len(frame), dtype=float)
    with pytest.raises(TrainingFailedError, match=r"rows of a query.*weight"):
        quick_trainer({"train": frame}, **settings).fit()


def test_a_column_of_vectors_becomes_one_feature_per_element() -> None:
    frame = numbers()
    plain = quick_trainer({"train": frame}, params=SMALL, inline=True).fit()
    preprocessor = Concatenator(include=["f0", "f1", "f2", "f3"], output_column_name="x")
    result = quick_trainer({"train": frame}, params=SMALL, preprocessor=preprocessor, inline=True).fit()
    model = result.checkpoint.get_model()
    assert model.feature_names == ["x_0", "x_1", "x_2", "x_3"]
    assert rows_of(result, "train-rmse") == pytest.approx(rows_of(plain, "train-rmse"), rel=1e-6)
    expected = XGBoostPredictor.from_checkpoint(plain.checkpoint).predict(frame.drop(columns="y"))
    predicted = XGBoostPredictor.from_checkpoint(result.checkpoint).predict(frame.drop(columns="y"))
    np.testing.assert_allclose(predicted["predictions"], expected["predictions"], rtol=1e-6)


def test_rows_from_disk_make_the_same_model(tmp_path: Path) -> None:
    frame = numbers(rows=3000)
    for index in range(4):
        frame[index * 750 : (index + 1) * 750].to_parquet(tmp_path / f"{index}.parquet", row_group_size=250)
    dataset = data.read_parquet(str(tmp_path))
    inside = quick_trainer({"train": dataset, "valid": dataset}, params=SMALL, inline=True).fit()
    entries = {name: {"external_memory": True} for name in ("train", "valid")}
    outside = quick_trainer({"train": dataset, "valid": dataset}, params=SMALL, dmatrix_params=entries).fit()
    assert trees(outside.checkpoint.get_model()) == trees(inside.checkpoint.get_model())
    assert outside.metrics["valid-rmse"] == pytest.approx(inside.metrics["valid-rmse"], rel=1e-6)
    assert not [path for path in Path(outside.log_dir).rglob("*") if ".xgboost" in path.name or "page" in path.name]


class NoteFiles(TrainingCallback):
    """Writes down what XGBoost keeps on disk while it trains."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        scratch = backend.Place.here().scratch
        assert scratch is not None
        self.file.write_text(" ".join(os.listdir(scratch)))
        return False


@pytest.mark.parametrize(("memory", "on_disk"), [(16 << 30, False), (10_000, True)])
def test_rows_that_do_not_fit_into_memory_are_read_from_disk(
    memory: int, on_disk: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(matrix, "usable_memory", lambda: memory)
    notes = tmp_path / "files"
    result = quick_trainer({"train": numbers()}, params=SMALL, inline=True, callbacks=[NoteFiles(notes)]).fit()
    assert bool(notes.read_text()) is on_disk
    assert not [path for path in Path(result.log_dir).rglob("*") if ".xgboost" in path.name]


def test_booleans_decimals_halves_and_nulls_are_numbers() -> None:
    frame = numbers()
    table = pa.table(
        {
            "flag": pa.array(frame.f0 > 10),
            "price": pa.array([decimal.Decimal(int(value)) / 4 for value in frame.f1], pa.decimal128(12, 2)),
            "half": pa.array(frame.f2.to_numpy().astype(np.float16)),
            "some": pa.array([None if value < 5 else int(value) for value in frame.f3], pa.int32()),
            "none": pa.nulls(len(frame)),
            "y": frame.y.to_numpy(),
        }
    )
    same = pd.DataFrame(
        {
            "flag": (frame.f0 > 10).astype(float),
            "price": frame.f1 / 4,
            "half": frame.f2,
            "some": frame.f3.where(frame.f3 >= 5),
            "none": np.full(len(frame), np.nan),
            "y": frame.y,
        }
    )
    typed = quick_trainer({"train": data.from_arrow(table)}, params=SMALL, inline=True).fit()
    plain = quick_trainer({"train": same}, params=SMALL, inline=True).fit()
    assert rows_of(typed, "train-rmse") == pytest.approx(rows_of(plain, "train-rmse"), rel=1e-6)
    predictor = XGBoostPredictor.from_checkpoint(typed.checkpoint)
    expected = plain.checkpoint.get_model().inplace_predict(same.drop(columns="y"))
    np.testing.assert_allclose(predictor.predict(table)["predictions"].to_numpy(), expected, rtol=1e-6)


def test_names_types_and_what_is_left_out() -> None:
    frame = numbers().assign(code=np.arange(400) % 5, day=datetime.date(2024, 1, 1))
    entries = {"ignore": ["day", "f3"], "feature_names": ["a", "b", "c", "d"], "feature_types": ["q", "q", "q", "c"]}
    result = quick_trainer({"train": frame}, params=SMALL, dmatrix_params={"train": entries}, inline=True).fit()
    model = result.checkpoint.get_model()
    assert model.feature_names == ["a", "b", "c", "d"]
    assert model.feature_types == ["q", "q", "q", "c"]


def test_another_tree_method_takes_the_values_themselves() -> None:
    breast = load_breast_cancer(as_frame=True).frame
    params = {"objective": "binary:logistic", "tree_method": "approx", "max_depth": 3, "nthread": 1}
    matrix = xgboost.DMatrix(breast.drop(columns="target"), breast.target)
    history: dict[str, Any] = {}
    xgboost.train(params, matrix, 5, evals=[(matrix, "train")], evals_result=history, verbose_eval=False)
    result = quick_trainer({"train": breast}, "target", params=params, inline=True).fit()
    assert rows_of(result, "train-logloss") == pytest.approx(history["train"]["logloss"], rel=5e-2)


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ([datetime.date(2024, 1, 1)] * 400, r"'extra'.*date32"),
        ([[1, 2], [3]] * 200, r"'extra'.*list.*'ignore'"),
    ],
)
def test_columns_without_an_obvious_number_are_refused_by_name(column: list[Any], told: str) -> None:
    table = pa.Table.from_pandas(numbers(), preserve_index=False).append_column("extra", pa.array(column))
    with pytest.raises((DataError, TrainingFailedError), match=told):
        quick_trainer({"train": data.from_arrow(table)}, inline=True).fit()


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (["yes", "no"] * 200, r"'y' \(label_column\).*string.*LabelEncoder"),
        ([1.0, None] * 200, r"'y' \(label_column\).*200 missing"),
        ([1.0, float("inf")] * 200, r"'y' \(label_column\).*finite"),
    ],
)
def test_labels_that_are_no_numbers_are_refused(labels: list[Any], told: str) -> None:
    table = pa.table({"x": np.arange(400.0), "y": pa.array(labels, from_pandas=False)})
    with pytest.raises((DataError, TrainingFailedError), match=told):
        quick_trainer({"train": data.from_arrow(table)}, inline=True).fit()


@pytest.mark.parametrize(
    ("entries", "params", "told"),
    [
        ({"ignore": "f9"}, {}, r"\['ignore'\].*'f9'.*f0, f1, f2, f3, y"),
        ({"feature_names": ["a"]}, {}, "feature_names.*1 names.*4 features"),
        ({"external_memory": True}, {"tree_method": "approx"}, "external_memory.*tree_method='hist'"),
    ],
)
def test_entries_that_do_not_fit_the_rows_are_told(entries: dict[str, Any], params: dict[str, Any], told: str) -> None:
    with pytest.raises(TrainingFailedError, match=told):
        quick_trainer({"train": numbers()}, params=params, dmatrix_params={"train": entries}, inline=True).fit()


def test_queries_are_whole_wherever_pages_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One page would hold some rows of a query, and the next one the others."""
    generator = np.random.default_rng(0)
    query = np.sort(generator.integers(0, 60, 600))
    rows = {f"f{index}": generator.integers(0, 20, 600).astype(float) for index in range(2)}
    table = pa.table({**rows, "y": generator.integers(0, 3, 600), "query": query, "weight": 0.2 + query % 7})
    values = RowValues("y", {"qid": "query", "weight": "weight"}, "the table")

    def arguments(page: pa.Table) -> dict[str, Any]:
        return {"data": page.select(list(rows)), **values.of(page)}

    params = {**FEW_VALUES, "objective": "rank:ndcg"}
    expected = xgboost.train(params, xgboost.QuantileDMatrix(**arguments(table), max_bin=256), 5)
    monkeypatch.setattr(matrix, "PAGE_BYTES", 1500)
    batches = table.to_batches(37)
    pages = matrix.BatchPages(lambda: iter(batches), arguments, values.restart, str(tmp_path / "c"), "query")
    stored = xgboost.ExtMemQuantileDMatrix(pages, max_bin=256)
    assert len(stored.get_group()) == len(np.unique(query))
    assert trees(xgboost.train(params, stored, 5)) == trees(expected)


def test_evaluation_sets_have_the_columns_of_train_in_any_order() -> None:
    frame = numbers()
    other = frame.assign(more=1.0, also="text")[["also", "f3", "y", "f1", "f0", "more", "f2"]]
    result = quick_trainer({"train": frame, "valid": other}, params=SMALL, inline=True).fit()
    assert result.metrics["valid-rmse"] == result.metrics["train-rmse"]
    entries = {"train": {"feature_names": ["a", "b", "c", "d"]}}
    renamed = quick_trainer({"train": frame, "valid": other}, params=SMALL, dmatrix_params=entries, inline=True).fit()
    assert renamed.metrics["valid-rmse"] == result.metrics["valid-rmse"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (lambda frame: frame.drop(columns=["f1", "f2"]), "'valid'.*'f1', 'f2'"),
        (lambda frame: frame[:0], "'valid'.*no rows"),
        (lambda frame: frame.assign(f1="text"), "'f1'.*text.*numbers"),
        (lambda frame: frame.assign(city=3), "'city'.*category '3'"),
    ],
)
def test_evaluation_sets_that_do_not_fit_are_told(changes: Any, told: str) -> None:
    frame = numbers().assign(city="Rome")
    with pytest.raises(TrainingFailedError, match=told):
        quick_trainer({"train": frame, "valid": changes(frame)}, params=SMALL, inline=True).fit()


@pytest.mark.parametrize("filled", [pytest.param([], marks=pytest.mark.slow), range(200, 400)])
def test_a_column_of_text_that_some_workers_or_all_see_empty(filled: Sequence[int]) -> None:
    frame = numbers()
    frame["city"] = pd.Series([("Rome", "Oslo")[row % 2] if row in filled else None for row in range(400)], dtype="str")
    result = quick_trainer({"train": frame}, params=SMALL).fit()
    predicted = XGBoostPredictor.from_checkpoint(result.checkpoint).predict(frame)
    error = float(np.sqrt(((predicted.predictions - frame.y) ** 2).mean()))
    assert result.metrics["train-rmse"] == pytest.approx(error, rel=1e-6)


def test_names_that_xgboost_does_not_take_are_told() -> None:
    frame = numbers().rename(columns={"f0": "f[0]", "f1": "a < b"})
    with pytest.raises(TrainingFailedError, match=r"names.*'f\[0\]', 'a < b'"):
        quick_trainer({"train": frame}, params=SMALL, inline=True).fit()
    entries = {"train": {"feature_names": ["a", "b", "c", "d"]}}
    quick_trainer({"train": frame}, params=SMALL, dmatrix_params=entries, inline=True).fit()
