"""Data as users have it: odd names, nulls that come late, columns of one name, times with and without zones."""

from __future__ import annotations

import datetime
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline.data as data
from paceline.air.errors import ConfigError, DataError
from paceline.data.aggregate import AggregateFn, Max, Std, Sum
from paceline.data.sources.memory import TableSource

# -- names ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("key", ["left row", "right row", "key 0", "__left_row"])
def test_a_join_over_a_key_of_any_name(key: str) -> None:
    left = data.from_items([{key: number, "a": number} for number in range(4)])
    right = data.from_items([{key: number, "b": -number} for number in (1, 3, 9)])
    assert left.join(right, on=key).take_all() == [{key: 1, "a": 1, "b": -1}, {key: 3, "a": 3, "b": -3}]


def test_columns_of_one_name_are_refused_wherever_they_come_from(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    for make in (
        lambda: data.from_arrow(twice),
        lambda: data.read_parquet(tmp_path / "twice.parquet").schema(),
        lambda: data.read_csv(tmp_path / "twice.csv").schema(),
        lambda: data.range(3).map_batches(lambda batch: twice, batch_format="pyarrow").take_all(),
    ):
        with pytest.raises(DataError, match="several columns named 'a'"):
            make()


# -- nulls that come late, or early -----------------------------------------------------------


def late_nulls() -> pa.Table:
    rows = range(40)
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "whole": pa.array([None if row > 30 else row for row in rows], pa.int32()),
            "text": pa.array([None if row < 30 else f"t{row}" for row in rows]),
            "when": pa.array([None if row < 30 else datetime.datetime(2024, 1, 1) for row in rows]),
        }
    )


def in_small_blocks(table: pa.Table) -> data.Dataset:
    return data.Dataset(TableSource(table, block_rows=3))


@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "pyarrow"])
def test_batches_with_and_without_nulls_have_one_schema(batch_format: str) -> None:
    table = late_nulls()
    dataset = in_small_blocks(table).map_batches(lambda batch: batch, batch_format=batch_format)
    assert dataset.to_arrow().equals(table)


@pytest.mark.parametrize("method", ["map", "flat_map"])
def test_rows_with_and_without_nulls_have_one_schema(method: str) -> None:
    table = late_nulls()
    dataset = in_small_blocks(table)
    same = dataset.map(lambda row: row) if method == "map" else dataset.flat_map(lambda row: [row])
    assert same.to_arrow().to_pylist() == table.to_pylist()


def test_groups_with_and_without_nulls_have_one_schema() -> None:
    table = late_nulls()
    same = data.from_arrow(table).groupby("id").map_groups(lambda group: group).to_arrow()
    assert same.equals(table)


def test_fractions_after_whole_numbers_are_not_cut() -> None:
    def halved(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["id"] if batch["id"][0] == 0 else np.where(batch["id"] % 2, np.nan, batch["id"] + 0.5)}

    with pytest.raises(DataError, match=r"halved.*column 'x' has type double, but int64 was expected"):
        in_small_blocks(pa.table({"id": range(40)})).map_batches(halved).take_all()


# -- types ------------------------------------------------------------------------------------


def test_times_with_and_without_zone_do_not_mix(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("us"))}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("us", tz="UTC"))}), tmp_path / "1.parquet")
    with pytest.raises(DataError, match=r"1\.parquet: column 't' has type timestamp\[us, tz=UTC\]"):
        data.read_parquet(tmp_path).take_all()


def test_half_precision_keys_sort_group_and_join() -> None:
    dataset = data.from_arrow(pa.table({"k": pa.array(np.array([3, 1, 3], np.float16)), "v": [1, 2, 3]}))
    assert [row["v"] for row in dataset.sort("k").take_all()] == [2, 1, 3]
    assert dataset.groupby("k").sum("v").take_all() == [{"k": 1.0, "sum(v)": 2}, {"k": 3.0, "sum(v)": 4}]
    assert dataset.groupby("k").map_groups(lambda group: {"n": [len(group["v"])]}).take_all() == [{"n": 1}, {"n": 2}]
    assert dataset.join(dataset, on="k").count() == 5


def test_groups_of_a_column_of_nulls() -> None:
    dataset = data.from_arrow(pa.table({"k": pa.nulls(3), "v": [1, 2, 3]}))
    assert dataset.groupby("k").map_groups(lambda group: {"n": [len(group["v"])]}).take_all() == [{"n": 3}]
    with pytest.raises(DataError, match="column 'k' is null on the left and null on the right"):
        dataset.join(dataset, on="k").take_all()


def test_what_arrow_has_no_order_for_is_said_with_the_column() -> None:
    dataset = data.from_arrow(pa.table({"d": pa.array([1, 2], pa.duration("ms"))}))
    with pytest.raises(DataError, match=r"aggregate\(min\(d\)\)"):
        dataset.min("d")


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


def test_division_in_an_expression_is_that_of_python() -> None:
    rows = data.range(6).filter(expr="id / 2 > 1").take_all()
    assert [row["id"] for row in rows] == [3, 4, 5]


# -- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column", [pa.array([None, 1, None, 3]), pa.array([1.5, None, None, 2.5]), pa.array([None, "a", None, "b"])]
)
def test_nulls_of_a_single_column_survive_csv(tmp_path: Path, column: pa.Array) -> None:
    data.from_arrow(pa.table({"x": column})).repartition(1).write_csv(tmp_path)
    found = data.read_csv(tmp_path)
    texts = pa.types.is_string(column.type)
    expected = column.fill_null("") if texts else column  # CSV does not tell an empty text from none
    assert found.to_arrow().column("x").to_pylist() == expected.to_pylist()


def test_bytes_that_are_no_text_are_refused_by_csv(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"write_csv .* failed: .*UTF8"):
        data.from_arrow(pa.table({"b": [b"\xff"]})).write_csv(tmp_path)
    assert not list(tmp_path.iterdir())


def test_nanoseconds_are_written_to_json(tmp_path: Path) -> None:
    when = pa.array([1, None], pa.timestamp("ns"))
    took = pa.array([1_000_000_001, None], pa.duration("ns"))
    data.from_arrow(pa.table({"when": when, "took": took})).repartition(1).write_json(tmp_path)
    lines = next(tmp_path.iterdir()).read_text().splitlines()
    assert lines[0] == '{"when":"1970-01-01T00:00:00.000000001","took":"P0DT0H0M1.000000001S"}'
    assert lines[1] == '{"when":null,"took":null}'


def test_an_empty_array_in_a_shard_is_told_with_its_place(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("a.npy"), io.BytesIO(b""))
    with pytest.raises(DataError, match=r"shard\.tar, a\.npy cannot be decoded as npy"):
        data.read_webdataset(tmp_path).take_all()


# -- arguments --------------------------------------------------------------------------------


def test_a_column_may_be_one_number_of_numpy() -> None:
    assert data.range(2).add_column("x", lambda frame: np.float32(1.5)).take_all() == [
        {"id": 0, "x": 1.5},
        {"id": 1, "x": 1.5},
    ]


def test_fewer_than_no_rows_cannot_be_taken() -> None:
    with pytest.raises(ConfigError, match="limit is -1"):
        data.range(3).take(-1)


def test_thousands_of_columns() -> None:
    names = [f"c{number}" for number in range(4000)]
    wide = data.from_arrow(pa.table({name: [1.0, 3.0] for name in names}))
    chosen = wide.rename_columns({name: f"{name}!" for name in names}).select_columns(
        [f"{name}!" for name in names[1:]]
    )
    zipped = chosen.zip(wide).to_arrow()
    assert zipped.column_names == [*(f"{name}!" for name in names[1:]), *names]
    assert zipped.num_rows == 2
