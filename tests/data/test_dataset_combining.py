"""sort, union, zip, join, materialize."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline.data.store as store_module
from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data.dataset import Dataset
from paceline.data.sources.computed import TableSource


def table(columns: dict[str, Any], block_rows: int = 3) -> Dataset:
    return Dataset(TableSource(pa.table(columns), block_rows))


def rows(dataset: Dataset) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = dataset.to_arrow().to_pylist()
    return result


def column(dataset: Dataset, name: str) -> list[Any]:
    return [row[name] for row in rows(dataset)]


# -- sort -----------------------------------------------------------------------------------


def test_sort_is_stable_and_puts_nulls_last() -> None:
    dataset = table({"key": [2, None, 1, 2, 1, None, 3], "at": range(7)})
    assert column(dataset.sort("key"), "at") == [2, 4, 0, 3, 6, 1, 5]
    assert column(dataset.sort("key", descending=True), "at") == [6, 0, 3, 2, 4, 1, 5]


def test_sort_by_several_columns_each_in_its_direction() -> None:
    generator = np.random.default_rng(1)
    frame = pd.DataFrame({"a": generator.integers(0, 5, 500), "b": generator.random(500), "at": range(500)})
    dataset = Dataset(TableSource(pa.Table.from_pandas(frame), 64))
    expected = frame.sort_values(["a", "b"], ascending=[False, True])
    assert column(dataset.sort(["a", "b"], [True, False]), "at") == expected["at"].tolist()


@pytest.mark.parametrize(
    "values",
    [
        ["pear", "apple", "fig"],
        [True, False, True],
        [datetime.date(2020, 1, 3), datetime.date(2019, 1, 1), datetime.date(2021, 1, 1)],
        pa.array(["pear", "apple", "fig"]).dictionary_encode(),
        [2.5, math.inf, -1.0],
    ],
)
def test_everything_that_has_an_order_can_be_sorted(values: Any) -> None:
    dataset = table({"key": values}, 2).sort("key")
    assert column(dataset, "key") == sorted(column(dataset, "key"))


def test_sort_carries_tensors_along_and_works_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MEMORY_BYTES", 10_000)
    monkeypatch.setattr(store_module, "BATCH_BYTES", 5_000)
    dataset = data.range_tensor(1000, shape=(2, 2)).zip(data.range(1000).random_shuffle(seed=1))
    result = dataset.sort("id")
    assert result.plan.source.resolved().file is not None
    order = dict(zip(column(data.range(1000).random_shuffle(seed=1), "id"), range(1000), strict=True))
    for batch in result.iter_batches(batch_size=100):
        expected = np.array([order[value] for value in batch["id"].tolist()])
        assert (batch["data"] == expected[:, None, None]).all()
    assert column(result, "id") == list(range(1000))


def test_sort_is_lazy_and_knows_its_size_without_sorting() -> None:
    calls: list[int] = []

    def watched(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return row

    dataset = table({"key": [3, 1, 2]}).map(watched).sort("key")
    assert dataset.count() == 3
    assert not calls
    assert column(dataset, "key") == column(dataset, "key") == [1, 2, 3]
    assert len(calls) <= 6  # one look for the schema, one pass to store


def test_sort_names_what_it_cannot_use() -> None:
    dataset = table({"key": [3, 1, 2], "lists": [[1], [2], [3]]})
    with pytest.raises(DataError, match="'kex'"):
        rows(dataset.sort("kex"))
    with pytest.raises(DataError, match="'lists'"):
        rows(dataset.sort("lists"))
    for key, descending in [([], False), (["key", "key"], False), ("key", [True, False]), (3, False), ("key", "yes")]:
        with pytest.raises(ConfigError, match="sort"):
            dataset.sort(key, descending)  # type: ignore[arg-type]


# -- union ----------------------------------------------------------------------------------


def test_union_has_all_rows_in_order() -> None:
    dataset = table({"id": [1, 2, 3, 4]}).union(table({"id": [5]}), table({"id": [6, 7]}))
    assert column(dataset, "id") == [1, 2, 3, 4, 5, 6, 7]
    assert dataset.count() == 7
    assert dataset.num_blocks() == 4


def test_union_finds_types_that_hold_all() -> None:
    narrow = table({"a": pa.array([1, 2], pa.int32()), "b": pa.array([None, None])})
    wide = table({"b": ["x", "y"], "a": pa.array([2**40, 4], pa.int64())})
    dataset = narrow.union(wide)
    assert dataset.schema().names == ["a", "b"]
    assert rows(dataset) == [
        {"a": 1, "b": None},
        {"a": 2, "b": None},
        {"a": 2**40, "b": "x"},
        {"a": 4, "b": "y"},
    ]
    assert rows(dataset.select_columns(["b"]))[2:] == [{"b": "x"}, {"b": "y"}]


def test_union_refuses_other_columns_and_types() -> None:
    with pytest.raises(DataError, match=r"dataset 2.*'other'"):
        table({"id": [1]}).union(table({"other": [1]})).schema()
    with pytest.raises(DataError, match="union"):
        table({"id": [1]}).union(table({"id": ["text"]})).schema()
    with pytest.raises(ConfigError, match="list"):
        table({"id": [1]}).union([1])  # type: ignore[arg-type]


def test_union_with_a_dataset_without_rows() -> None:
    empty = table({"id": pa.array([], pa.int64())})
    assert column(empty.union(table({"id": [1]}), empty), "id") == [1]


# -- zip ------------------------------------------------------------------------------------


def test_zip_pairs_rows_whatever_the_blocks() -> None:
    left = table({"a": list(range(10)), "x": list(range(10))}, 3)
    right = table({"x": list(range(100, 110)), "b": list(range(10))}, 4)
    dataset = left.zip(right)
    assert dataset.schema().names == ["a", "x", "x_1", "b"]
    assert rows(dataset) == [{"a": i, "x": i, "x_1": 100 + i, "b": i} for i in range(10)]
    assert column(dataset.select_columns(["b", "a"]).limit(5), "b") == [0, 1, 2, 3, 4]
    assert rows(dataset.select_columns(["x_1"]))[-1] == {"x_1": 109}
    assert rows(dataset.select_columns(["x"]))[-1] == {"x": 9}
    assert column(dataset.split(3)[1], "x_1") == [104, 105, 106]


def test_zip_names_stay_unique() -> None:
    left = table({"x": [1], "x_1": [2]})
    assert rows(left.zip(table({"x": [3]}))) == [{"x": 1, "x_1": 2, "x_2": 3}]


def test_zip_counts_rows_that_operations_changed() -> None:
    left = data.range(100).filter(lambda row: row["id"] % 2 == 0)
    right = data.range(50).map(lambda row: {"at": row["id"]})
    assert all(row["id"] == 2 * row["at"] for row in rows(left.zip(right)))


def test_zip_refuses_unequal_lengths() -> None:
    with pytest.raises(DataError, match=r"\b3\b.*\b2\b"):
        rows(table({"a": [1, 2, 3]}).zip(table({"b": [1, 2]})))


# -- join -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_join_agrees_with_pandas(how: Any) -> None:
    generator = np.random.default_rng(3)
    left = pd.DataFrame({"key": generator.integers(0, 30, 60), "sub": generator.choice(["a", "b"], 60), "l": range(60)})
    right = pd.DataFrame(
        {"sub": generator.choice(["a", "b"], 40), "key": generator.integers(10, 40, 40), "r": range(40)}
    )
    dataset = Dataset(TableSource(pa.Table.from_pandas(left), 7)).join(
        Dataset(TableSource(pa.Table.from_pandas(right), 9)), ["key", "sub"], how
    )
    expected = left.merge(right, on=["key", "sub"], how=how)
    wanted = {tuple(None if value != value else value for value in row) for row in expected.itertuples(index=False)}
    found = [(row["key"], row["sub"], row["l"], row["r"]) for row in rows(dataset)]
    assert set(found) == wanted
    assert len(found) == len(expected)
    lefts = [row[2] for row in found if row[2] is not None]
    assert lefts == sorted(lefts)  # always in this order


def test_join_carries_any_type_and_renames_what_clashes() -> None:
    left = data.range_tensor(3, shape=(2,)).zip(table({"key": [1, 2, 3], "x": [1, 2, 3]}))
    right = table({"key": [3, 1], "x": [30, 10], "lists": [[1], []]})
    dataset = left.join(right, "key")
    assert dataset.schema().names == ["data", "key", "x", "x_1", "lists"]
    assert [(row["key"], row["x_1"], row["lists"]) for row in rows(dataset)] == [(1, 10, []), (3, 30, [1])]
    (batch,) = dataset.iter_batches()
    assert batch["data"].tolist() == [[0, 0], [2, 2]]


def test_join_refuses_what_cannot_be_matched() -> None:
    left, right = table({"key": [1], "lists": [[1]]}), table({"key": ["1"], "lists": [[1]]})
    with pytest.raises(DataError, match=r"'key'.*int64.*string"):
        rows(left.join(right, "key"))
    with pytest.raises(DataError, match="'lists'"):
        rows(left.join(right, "lists"))
    with pytest.raises(DataError, match="'nothing'"):
        rows(left.join(right, "nothing"))
    with pytest.raises(ConfigError, match="how"):
        left.join(right, "key", "sideways")


@pytest.mark.parametrize("key", ["left row", "right row", "key 0", "__left_row"])
def test_a_join_over_a_key_of_any_name(key: str) -> None:
    left = data.from_items([{key: number, "a": number} for number in range(4)])
    right = data.from_items([{key: number, "b": -number} for number in (1, 3, 9)])
    assert left.join(right, on=key).take_all() == [{key: 1, "a": 1, "b": -1}, {key: 3, "a": 3, "b": -3}]


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_join_over_categories_of_numbers(how: Any) -> None:
    left = data.from_arrow(pa.table({"k": pa.array([1, 2, 3]).dictionary_encode(), "a": [1, 2, 3]}))
    right = data.from_arrow(pa.table({"k": pa.array([2, 4]).dictionary_encode(), "b": [5, 6]}))
    frame = pd.DataFrame({"k": [1, 2, 3], "a": [1, 2, 3]}).merge(
        pd.DataFrame({"k": [2, 4], "b": [5, 6]}), on="k", how=how
    )
    found = left.join(right, on="k", how=how).to_pandas().astype("float64")
    pd.testing.assert_frame_equal(
        found.sort_values("k", ignore_index=True), frame.astype("float64").sort_values("k", ignore_index=True)
    )


def test_an_outer_join_over_related_types_keeps_all_keys() -> None:
    left = data.from_arrow(pa.table({"k": pa.array([1, 2], pa.int32()), "a": [1, 2]}))
    right = data.from_arrow(pa.table({"k": pa.array([2, 2**40], pa.int64()), "b": [3, 4]}))
    joined = left.join(right, on="k", how="outer")
    assert joined.schema().field("k").type == pa.int64()
    assert sorted(row["k"] for row in joined.take_all()) == [1, 2, 2**40]
    assert left.join(right, on="k").schema().field("k").type == pa.int32()


SEATS = [{"kind": "car", "seats": 5}, {"kind": "bus", "seats": 50}]
TRIPS = [{"kind": "bus", "km": 3, "seats": 1}, {"kind": "bike", "km": 2, "seats": 2}]


@pytest.mark.parametrize(
    ("join_type", "found"),
    [
        ("inner", [("bus", 3)]),
        ("left_outer", [("bus", 3), ("bike", 2)]),
        ("right_outer", [("bus", 3), ("car", None)]),
        ("full_outer", [("bus", 3), ("bike", 2), ("car", None)]),
        ("left_semi", [("bus", 3)]),
        ("left_anti", [("bike", 2)]),
    ],
)
def test_join_in_the_spelling_of_ray(join_type: str, found: list[tuple[str, int | None]]) -> None:
    trips = data.from_items(TRIPS)
    seats = data.from_items(SEATS).rename_columns({"kind": "what"})
    joined = trips.join(seats, join_type=join_type, num_partitions=2, on=("kind",), right_on=("what",))
    assert [(row["kind"], row["km"]) for row in joined.take_all()] == found


def test_semi_and_anti_joins_keep_the_columns_of_one_side() -> None:
    trips, seats = data.from_items(TRIPS), data.from_items(SEATS)
    assert trips.join(seats, "kind", "left_semi").take_all() == TRIPS[:1]
    assert trips.join(seats, "right_semi", 4, ("kind",)).take_all() == SEATS[1:]
    assert trips.join(seats, "right_anti", 4, on="kind").take_all() == SEATS[:1]
    assert trips.join(seats, "left_anti", on="kind").columns() == ["kind", "km", "seats"]


def test_join_gives_both_columns_of_one_name_their_suffixes() -> None:
    trips, seats = data.from_items(TRIPS), data.from_items(SEATS)
    joined = trips.join(seats, on="kind", left_suffix="_taken", right_suffix="_built")
    assert joined.take_all() == [{"kind": "bus", "km": 3, "seats_taken": 1, "seats_built": 50}]


def test_join_names_what_is_wrong_with_its_arguments() -> None:
    one = data.range(2)
    with pytest.raises(ConfigError, match=r"join_type.*left_outer"):
        one.join(one, join_type="left", num_partitions=2)
    with pytest.raises(TypeError, match=r"join\(\).*on="):
        one.join(one)
    with pytest.raises(TypeError, match=r"multiple values.*'on'"):
        one.join(one, "id", on="id")
    with pytest.raises(ConfigError, match="right_on"):
        one.join(one, on="id", right_on=["id", "other"])
    with pytest.warns(UserWarning, match="partition_size_hint"):
        assert one.join(one, "inner", 2, partition_size_hint=100).count() == 2


# -- materialize ----------------------------------------------------------------------------


def test_materialize_runs_once_and_keeps_the_rows() -> None:
    calls: list[int] = []

    def watched(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return {"id": batch["id"] * 2}

    dataset = data.range(100).map_batches(watched).materialize()
    after = len(calls)
    assert column(dataset, "id") == list(range(0, 200, 2))
    assert dataset.count() == 100
    assert column(dataset.random_shuffle(seed=1).sort("id"), "id")[:3] == [0, 2, 4]
    assert len(calls) == after
    assert dataset.size_bytes() == 800
    assert data.range(100).map_batches(watched).size_bytes() is None


def test_what_could_not_be_read_is_still_told_after_barriers(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"{number}.parquet")
    (tmp_path / "1.parquet").write_bytes(b"damaged")
    dataset = data.read_parquet(str(tmp_path), on_error="skip")
    results = [
        dataset.sort("id"),
        dataset.random_shuffle(seed=1),
        dataset.materialize(),
        dataset.union(dataset),
        dataset.limit(5),
        dataset.groupby("id").map_groups(lambda group: group),
    ]
    for result in results:
        assert sorted(set(column(result, "id"))) == [0, 2]
        (line,) = set(result.plan.resolved().skipped())
        assert "1.parquet" in line
