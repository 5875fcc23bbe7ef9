"""limit, split, split_at_indices, split_proportionately, train_test_split, repartition."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline import data
from paceline.air.errors import ConfigError
from paceline.data.block import ReadRequest
from paceline.data.dataset import Dataset
from paceline.data.sources.computed import TableSource
from paceline.data.sources.listing import list_files
from paceline.data.sources.parquet import ParquetSource


def numbered(rows: int, block_rows: int) -> Dataset:
    return Dataset(TableSource(pa.table({"id": np.arange(rows), "twice": 2 * np.arange(rows)}), block_rows))


def ids(dataset: Dataset) -> list[int]:
    return [value for batch in dataset.iter_batches(batch_size=7) for value in batch["id"].tolist()]


def every_other(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"][::2]}


@pytest.mark.parametrize("limit", [0, 1, 9, 10, 11, 25, 26, 1000])
def test_limit_gives_the_first_rows(limit: int) -> None:
    dataset = numbered(26, 10).limit(limit)
    assert ids(dataset) == list(range(min(limit, 26)))
    assert dataset.count() == min(limit, 26)


def test_limit_runs_no_more_than_it_needs() -> None:
    calls: list[int] = []

    def counting(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(batch["id"]))
        return batch

    dataset = numbered(1000, 10).map_batches(counting).limit(25)
    assert not calls
    assert ids(dataset) == list(range(25))
    assert sum(calls) < 100


def test_limits_may_follow_each_other_and_other_operations() -> None:
    assert ids(numbered(100, 10).limit(50).limit(15)) == list(range(15))
    assert ids(numbered(100, 10).filter(lambda row: row["id"] % 2 == 1).limit(15)) == list(range(1, 31, 2))
    assert ids(numbered(100, 10).limit(15).filter(lambda row: row["id"] % 2 == 1)) == [1, 3, 5, 7, 9, 11, 13]
    assert ids(numbered(100, 10).map(lambda row: {"id": row["id"] + 1}).limit(3)) == [1, 2, 3]


@pytest.mark.parametrize("limit", [-1, 1.5, True, "3"])
def test_limit_refuses_what_is_no_number_of_rows(limit: Any) -> None:
    with pytest.raises(ConfigError, match="limit"):
        numbered(10, 5).limit(limit)


@pytest.mark.parametrize("rows", [0, 1, 5, 23, 24])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_split_deals_all_rows_evenly(rows: int, n: int) -> None:
    parts = numbered(rows, 4).split(n)
    assert len(parts) == n
    assert [value for part in parts for value in ids(part)] == list(range(rows))
    sizes = [part.count() for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_equal_split_leaves_out_the_rest() -> None:
    parts = numbered(23, 4).split(3, equal=True)
    assert [part.count() for part in parts] == [7, 7, 7]
    assert [value for part in parts for value in ids(part)] == list(range(21))


def test_split_takes_locality_hints_of_older_code() -> None:
    assert len(numbered(4, 2).split(2, locality_hints=[None, None])) == 2
    with pytest.raises(ConfigError, match="locality_hints"):
        numbered(4, 2).split(2, locality_hints=[None])


def test_split_at_indices() -> None:
    parts = numbered(20, 6).split_at_indices([3, 3, 11, 50])
    assert [ids(part) for part in parts] == [[0, 1, 2], [], list(range(3, 11)), list(range(11, 20)), []]
    for bad in ([5, 3], [], [-1]):
        with pytest.raises(ConfigError):
            numbered(20, 6).split_at_indices(bad)


def test_split_proportionately() -> None:
    parts = numbered(20, 6).split_proportionately([0.2, 0.5])
    assert [part.count() for part in parts] == [4, 10, 6]
    assert [value for part in parts for value in ids(part)] == list(range(20))
    parts = numbered(20, 6).split_proportionately([0.5, 0.01, 0.01])  # none is empty while there are rows before
    assert [part.count() for part in parts] == [8, 1, 1, 10]
    for bad in ([], [0.5, 0.5], [0.0, 0.1], [-0.1], [0.01], [0.01, 0.01]):
        with pytest.raises(ConfigError, match="split_proportionately"):
            numbered(20, 6).split_proportionately(bad)


def test_shares_are_meant_as_they_are_written() -> None:
    """As floats, 0.7 + 0.2 is below 0.9 and 0.29 * 100 is below 29."""
    assert [part.count() for part in data.range(1000).split_proportionately([0.7, 0.2])] == [700, 200, 100]
    assert [part.count() for part in data.range(100).train_test_split(0.29)] == [71, 29]
    with pytest.raises(ConfigError, match=r"split_proportionately.*\b1\b"):
        data.range(1000).split_proportionately([0.7, 0.2, 0.1])


def test_train_test_split_cuts_from_the_end() -> None:
    train, test = numbered(10, 3).train_test_split(0.25)
    assert (ids(train), ids(test)) == (list(range(7)), [7, 8, 9])  # a share of a row is a row of the test set
    train, test = numbered(10, 3).train_test_split(3)
    assert (ids(train), ids(test)) == (list(range(7)), [7, 8, 9])


def test_train_test_split_shuffles_if_asked() -> None:
    train, test = numbered(100, 30).train_test_split(0.3, shuffle=True, seed=5)
    again = numbered(100, 30).train_test_split(0.3, shuffle=True, seed=5)
    assert (ids(train), ids(test)) == (ids(again[0]), ids(again[1]))
    assert len(ids(test)) == 30
    assert sorted(ids(train) + ids(test)) == list(range(100))
    assert ids(test) != list(range(70, 100))


@pytest.mark.parametrize("size", [0, 10, 11, 0.0, 1.0, 1.5, -0.1, -2, "half", True])
def test_train_test_split_refuses_sizes_that_leave_nothing(size: Any) -> None:
    with pytest.raises(ConfigError, match="test_size"):
        numbered(10, 3).train_test_split(size)


def test_splits_of_rows_that_had_to_be_counted() -> None:
    parts = numbered(100, 10).map_batches(every_other).split(3)
    assert [part.count() for part in parts] == [17, 17, 16]
    assert [value for part in parts for value in ids(part)] == list(range(0, 100, 2))
    assert ids(parts[2].limit(2)) == [68, 70]


def test_parts_of_parquet_files_are_cut_without_reading_rows(tmp_path: Path) -> None:
    for number in range(3):
        table = pa.table({"id": np.arange(number * 10, number * 10 + 10)})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=4)
    dataset = Dataset(ParquetSource(list_files(str(tmp_path), None, (".parquet",))))
    train, test = dataset.train_test_split(0.3)
    assert (train.count(), test.count()) == (21, 9)
    for number in (0, 1):  # what the test part does not need may be gone
        (tmp_path / f"{number}.parquet").unlink()
    assert ids(test) == list(range(21, 30))


def test_a_part_of_a_block_of_a_part() -> None:
    part = numbered(100, 40).split_at_indices([10, 90])[1]
    plan = pickle.loads(pickle.dumps(part.plan))
    assert [block.rows for block in plan.blocks()] == [30, 40, 10]
    chunks = list(plan.read(1, ReadRequest(5, 12, ("twice",), chunk_rows=3)))
    assert [chunk.num_rows for chunk in chunks] == [3, 3, 1]
    assert [value for chunk in chunks for value in chunk.column(0).to_pylist()] == list(range(90, 104, 2))


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 7, 30])
def test_repartition_keeps_rows_and_order(num_blocks: int) -> None:
    dataset = numbered(26, 10).repartition(num_blocks)
    assert dataset.num_blocks() == num_blocks
    assert ids(dataset) == list(range(26))
    sizes = [block.rows or 0 for block in dataset.plan.blocks()]
    assert max(sizes) - min(sizes) <= 1
    assert ids(numbered(26, 10).map_batches(every_other).repartition(num_blocks)) == ids(
        numbered(26, 10).map_batches(every_other)
    )


def test_repartition_refuses_no_blocks() -> None:
    with pytest.raises(ConfigError, match="num_blocks"):
        numbered(26, 10).repartition(0)


def test_a_seed_without_a_shuffle_is_told() -> None:
    with pytest.warns(UserWarning, match=r"seed.*shuffle=True"):
        data.range(5).train_test_split(0.2, seed=3)


def test_equal_parts_of_fewer_rows_than_parts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"5 row.*6 parts"):
        data.range(5).split(6, equal=True)
