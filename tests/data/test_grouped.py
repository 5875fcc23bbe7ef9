"""groupby: aggregations, and functions of whole groups."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import paceline.data.aggregation as column_parts
from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data.aggregate import AbsMax, AggregateFn, Count, Max, Mean, Quantile, Std, Sum, Unique
from paceline.data.dataset import Dataset
from paceline.data.sources.computed import TableSource


def table(columns: dict[str, Any], block_rows: int = 3) -> Dataset:
    return Dataset(TableSource(pa.table(columns), block_rows))


def rows(dataset: Dataset) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = dataset.to_arrow().to_pylist()
    return result


@pytest.fixture
def frame() -> pd.DataFrame:
    generator = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "key": generator.integers(0, 20, 1000),
            "sub": generator.choice(["a", "b", "c"], 1000),
            "x": generator.standard_normal(1000) + 1e6,
            "n": generator.integers(-50, 50, 1000),
        }
    )


def of_frame(frame: pd.DataFrame, block_rows: int = 64) -> Dataset:
    return Dataset(TableSource(pa.Table.from_pandas(frame), block_rows))


@pytest.mark.parametrize("name", ["sum", "min", "max", "mean", "std"])
def test_aggregations_agree_with_pandas(frame: pd.DataFrame, name: str) -> None:
    found = getattr(of_frame(frame).groupby("key"), name)(["x", "n"]).to_pandas()
    expected = getattr(frame.groupby("key")[["x", "n"]], name)().reset_index()
    assert list(found.columns) == ["key", f"{name}(x)", f"{name}(n)"]
    for column, wanted in zip(found.columns, expected.columns, strict=True):
        np.testing.assert_allclose(found[column], expected[wanted], rtol=1e-9)


def test_several_keys_and_aggregations_at_once(frame: pd.DataFrame) -> None:
    found = (
        of_frame(frame)
        .groupby(["sub", "key"])
        .aggregate(
            Count(),
            Mean("n"),
            Std("x", ddof=0),
            AbsMax("n"),
            Quantile("n", 0.9),
            Unique("n"),
            Sum("n", alias_name="total"),
        )
        .to_pandas()
    )
    groups = frame.groupby(["sub", "key"])
    assert found[["sub", "key"]].to_numpy().tolist() == [list(key) for key in groups.groups]
    assert found["count()"].tolist() == groups.size().tolist()
    assert found["total"].tolist() == groups["n"].sum().tolist()
    np.testing.assert_allclose(found["std(x)"], groups["x"].std(ddof=0), rtol=1e-6)
    np.testing.assert_allclose(found["quantile(n)"], groups["n"].quantile(0.9))
    assert found["abs_max(n)"].tolist() == groups["n"].apply(lambda part: part.abs().max()).tolist()
    assert [sorted(cell) for cell in found["unique(n)"]] == [sorted(part.unique()) for _, part in groups["n"]]


def test_memory_goes_with_groups_by_merging_on_the_way(frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_parts, "ROWS_TO_MERGE_AT", 10)
    found = of_frame(frame, 7).groupby("key").aggregate(Std("x"), Count(), Unique("sub")).to_pandas()
    np.testing.assert_allclose(found["std(x)"], frame.groupby("key")["x"].std(), rtol=1e-9)
    assert found["count()"].sum() == 1000
    assert all(sorted(cell) == ["a", "b", "c"] for cell in found["unique(sub)"])


def test_nulls_nans_and_zeros_among_keys() -> None:
    dataset = table({"key": [math.nan, 0.0, None, -0.0, math.nan, None, 1.0]}, 2)
    found = rows(dataset.groupby("key").count())
    assert [row["count()"] for row in found] == [2, 1, 2, 2]
    assert [row["key"] for row in found][:2] == [0.0, 1.0]
    assert math.isnan(found[2]["key"])
    assert found[3]["key"] is None


def test_nulls_among_values() -> None:
    dataset = table({"key": ["a", "a", "b", "b", "c"], "x": [1, None, 2, 4, None]}, 2)
    grouped = dataset.groupby("key")
    assert [row["sum(x)"] for row in rows(grouped.sum("x"))] == [1, 6, None]
    assert [row["mean(x)"] for row in rows(grouped.mean("x", ignore_nulls=False))] == [None, 3.0, None]
    assert [row["std(x)"] for row in rows(grouped.std("x"))] == [None, math.sqrt(2), None]


def test_all_other_columns_by_default() -> None:
    dataset = table({"key": pa.array(["a", "b", "a"]).dictionary_encode(), "x": [1, 2, 3], "y": [1.0, 2.0, 3.0]}, 2)
    assert rows(dataset.groupby("key").max()) == [
        {"key": "a", "max(x)": 3, "max(y)": 3.0},
        {"key": "b", "max(x)": 2, "max(y)": 2.0},
    ]


def test_no_key_is_one_group() -> None:
    assert rows(table({"x": [1, 2, 3]}).groupby(None).sum("x")) == [{"sum(x)": 6}]


def test_no_rows_are_no_groups() -> None:
    dataset = table({"key": pa.array([], pa.string()), "x": pa.array([], pa.int32())})
    found = dataset.groupby("key").mean("x")
    assert rows(found) == []
    assert found.schema() == pa.schema({"key": pa.string(), "mean(x)": pa.float64()})
    assert rows(dataset.groupby("key").map_groups(lambda batch: batch)) == []


def test_the_schema_is_known_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise AssertionError("rows were read")

    grouped = table({"key": ["a"], "x": [1]}).groupby("key").aggregate(Sum("x"), Unique("x"))
    with monkeypatch.context() as patched:
        patched.setattr(TableSource, "read", refused)
        schema = grouped.schema()
    assert schema.names == ["key", "sum(x)", "unique(x)"]
    assert grouped.to_arrow().schema == schema


def test_functions_of_the_user_see_their_key() -> None:
    seen = []

    def init(key: Any) -> int:
        seen.append(key)
        return 0

    own = AggregateFn(init, lambda a, b: a + b, accumulate_row=lambda total, row: total + row["x"], name="own")
    dataset = table({"a": [1, 1, 2, 1], "b": ["x", "y", "x", "x"], "x": [1, 2, 3, 4]}, 4)
    assert [row["own"] for row in rows(dataset.groupby("a").aggregate(own))] == [7, 3]
    assert sorted(set(seen)) == [1, 2]
    assert [row["own"] for row in rows(dataset.groupby(["a", "b"]).aggregate(own))] == [5, 2, 3]
    assert (1, "x") in seen


def test_what_cannot_be_grouped_is_named() -> None:
    dataset = table({"lists": [[1]], "x": [1], "text": ["a"]})
    with pytest.raises(DataError, match="'lists'"):
        rows(dataset.groupby("lists").count())
    with pytest.raises(DataError, match="'nothing'"):
        rows(dataset.groupby("nothing").count())
    with pytest.raises(DataError, match="'text'"):
        rows(dataset.groupby("x").sum(["text"]))
    with pytest.raises(ConfigError, match="groupby"):
        dataset.groupby([])


def test_a_misspelt_key_is_told_with_the_near_miss() -> None:
    with pytest.raises(DataError, match=r"^groupby.*'idd'.*'id'\?"):
        data.range(5).groupby("idd").count().take(1)
    with pytest.raises(DataError, match=r"^groupby\(idd\).*'idd'"):
        data.range(5).groupby("idd").map_groups(lambda group: group).take(1)


@pytest.mark.parametrize("key", ["0", "1", "0.0", "row", "key 0", "__row", "", "列"])
def test_a_key_may_have_any_name(key: str) -> None:
    frame = pd.DataFrame({key: [1, 1, 2, 2], "v": [10, 20, 30, 50]})
    dataset = data.from_pandas(frame).groupby(key).aggregate(Sum("v"), Std("v", ignore_nulls=False), Max("v"))
    rows = dataset.take_all()
    assert [(row[key], row["sum(v)"], row["max(v)"]) for row in rows] == [(1, 30, 20), (2, 80, 50)]
    assert [row["std(v)"] for row in rows] == pytest.approx(frame.groupby(key)["v"].std().tolist())


def test_a_users_aggregation_over_a_key_of_any_name() -> None:
    longest = AggregateFn(
        init=lambda key: 0, merge=max, accumulate_row=lambda most, row: max(most, row["v"]), name="longest"
    )
    dataset = data.from_items([{"0": number % 2, "v": number} for number in range(40)])
    assert dataset.groupby("0").aggregate(longest).take_all() == [{"0": 0, "longest": 38}, {"0": 1, "longest": 39}]


def test_half_precision_keys_sort_group_and_join() -> None:
    dataset = data.from_arrow(pa.table({"k": pa.array(np.array([3, 1, 3], np.float16)), "v": [1, 2, 3]}))
    assert [row["v"] for row in dataset.sort("k").take_all()] == [2, 1, 3]
    assert dataset.groupby("k").sum("v").take_all() == [{"k": 1.0, "sum(v)": 2}, {"k": 3.0, "sum(v)": 4}]
    assert dataset.groupby("k").map_groups(lambda group: {"n": [len(group["v"])]}).take_all() == [{"n": 1}, {"n": 2}]
    assert dataset.join(dataset, on="k").count() == 5


def test_groups_of_a_column_of_nulls() -> None:
    dataset = data.from_arrow(pa.table({"k": pa.nulls(3), "v": [1, 2, 3]}))
    assert dataset.groupby("k").map_groups(lambda group: {"n": [len(group["v"])]}).take_all() == [{"n": 3}]
    with pytest.raises(DataError, match=r"'k'.*null.*null"):
        dataset.join(dataset, on="k").take_all()


# -- map_groups -----------------------------------------------------------------------------


@pytest.mark.parametrize("block_rows", [1, 64, 1000])
def test_map_groups_gets_every_group_whole(frame: pd.DataFrame, block_rows: int) -> None:
    def summary(group: pd.DataFrame) -> pd.DataFrame:
        assert group["key"].nunique() == 1
        return pd.DataFrame({"key": group["key"].iloc[:1], "rows": [len(group)], "first": group["n"].iloc[:1]})

    found = of_frame(frame, block_rows).groupby("key").map_groups(summary, batch_format="pandas").to_pandas()
    groups = frame.groupby("key")
    assert found["key"].tolist() == sorted(frame["key"].unique())
    assert found["rows"].tolist() == groups.size().tolist()
    assert found["first"].tolist() == groups["n"].first().tolist()  # rows of a group keep their order


def test_map_groups_with_a_group_larger_than_blocks_and_chunks() -> None:
    keys = ["a"] * 200_000 + ["b"] * 3
    dataset = table({"key": keys}, 1000).groupby("key")
    sizes = dataset.map_groups(lambda group: {"rows": np.array([len(group["key"])])})
    assert [row["rows"] for row in rows(sizes)] == [200_000, 3]


def test_map_groups_takes_several_keys_arguments_and_generators() -> None:
    def shares(group: dict[str, Any], factor: int, *, plus: int) -> Iterator[dict[str, Any]]:
        yield {"share": group["x"] / group["x"].sum() * factor + plus}
        yield {"share": np.array([0.0])}

    dataset = table({"a": [1, 1, 2, 2], "b": [1, 1, 1, 2], "x": [1.0, 3.0, 5.0, 7.0]})
    found = dataset.groupby(["a", "b"]).map_groups(shares, fn_args=[100], fn_kwargs={"plus": 1})
    assert [row["share"] for row in rows(found)] == [26.0, 76.0, 0.0, 101.0, 0.0, 101.0, 0.0]


def test_map_groups_of_everything() -> None:
    found = table({"x": list(range(10))}).groupby(None).map_groups(lambda group: {"rows": [len(group["x"])]})
    assert rows(found) == [{"rows": 10}]


def test_map_groups_that_fails_names_function_and_group() -> None:
    def broken(group: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("no such luck")

    with pytest.raises(DataError, match=r"map_groups\(broken\).*groupby\(key\).*no such luck"):
        rows(table({"key": [1, 2]}).groupby("key").map_groups(broken))
    with pytest.raises(DataError, match="None"):
        rows(table({"key": [1, 2]}).groupby("key").map_groups(lambda group: None))
    with pytest.raises(ConfigError, match="batch_format"):
        table({"key": [1, 2]}).groupby("key").map_groups(broken, batch_format="xml")
