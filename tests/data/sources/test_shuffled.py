"""Rows and blocks in random order, epoch by epoch."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

import paceline.data.store as store_module
from paceline import data
from paceline.air.errors import ConfigError
from paceline.data.block import ReadRequest, Source
from paceline.data.dataset import Dataset
from paceline.data.sources.computed import TableSource


def ids(source: Source, chunk_rows: int = 1000) -> list[int]:
    return [
        value
        for block in range(len(source.blocks()))
        for chunk in source.read(block, ReadRequest(chunk_rows=chunk_rows))
        for value in chunk.column("id").to_pylist()
    ]


def numbered(rows: int, block_rows: int) -> Dataset:
    return Dataset(TableSource(pa.table({"id": np.arange(rows)}), block_rows))


# -- rows -----------------------------------------------------------------------------------


def test_random_shuffle_has_every_row_once_and_one_order_per_seed() -> None:
    dataset = numbered(1000, 64).random_shuffle(seed=3)
    first = ids(dataset.plan)
    assert sorted(first) == list(range(1000))
    assert first != sorted(first)
    assert first == ids(numbered(1000, 64).random_shuffle(seed=3).plan, chunk_rows=17)
    assert first == ids(numbered(1000, 100).random_shuffle(seed=3).plan)  # blocks do not matter
    assert first != ids(numbered(1000, 64).random_shuffle(seed=4).plan)


def test_without_a_seed_a_dataset_still_has_one_order() -> None:
    dataset = numbered(200, 64).random_shuffle()
    assert ids(dataset.plan) == ids(dataset.plan)
    assert ids(dataset.plan) != ids(numbered(200, 64).random_shuffle().plan)


def test_epochs_have_other_orders_and_store_the_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    dataset = numbered(100, 64).map_batches(lambda batch: calls.append(1) or batch)
    plan = dataset.random_shuffle(seed=3).plan
    orders = [tuple(ids(plan.for_epoch(epoch))) for epoch in range(3)]
    assert len(set(orders)) == 3
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert orders[1] == tuple(ids(plan.resolved().for_epoch(1)))
    # One call for the schema, two blocks counted, two blocks stored.
    assert len(calls) <= 5


def test_shuffled_rows_beyond_memory_come_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MEMORY_BYTES", 1_000)
    monkeypatch.setattr(store_module, "BATCH_BYTES", 1_000)
    plan = numbered(5000, 512).random_shuffle(seed=3).plan.resolved()
    assert plan.source.child.file is not None
    assert sorted(ids(plan)) == list(range(5000))


def test_a_resolved_shuffle_travels_with_its_rows_and_not_with_what_made_them() -> None:
    plan = numbered(100, 64).map(lambda row: row).random_shuffle(seed=3).plan.resolved()
    copy = pickle.loads(pickle.dumps(plan))  # the function of map could not be pickled
    assert ids(copy) == ids(plan)


def test_num_blocks_is_what_was_asked_for() -> None:
    dataset = numbered(10, 3).random_shuffle(seed=1, num_blocks=4)
    assert [block.rows for block in dataset.plan.blocks()] == [2, 3, 2, 3]
    shuffled = numbered(10, 3).repartition(4, shuffle=True)
    assert shuffled.num_blocks() == 4
    assert sorted(ids(shuffled.plan)) == list(range(10))
    with pytest.raises(ConfigError, match="num_blocks"):
        numbered(10, 3).random_shuffle(num_blocks=0)


def test_an_empty_dataset_can_be_shuffled() -> None:
    dataset = numbered(0, 1).random_shuffle(seed=1)
    assert dataset.count() == 0
    assert dataset.randomize_block_order(seed=1).count() == 0
    assert ids(dataset.plan) == []


# -- blocks ---------------------------------------------------------------------------------


def test_randomize_block_order_keeps_blocks_together() -> None:
    plan = numbered(100, 10).randomize_block_order(seed=5).plan
    for epoch in range(3):
        order = np.array(ids(plan.for_epoch(epoch))).reshape(10, 10)
        assert (np.diff(order, axis=1) == 1).all()
        assert sorted(order[:, 0]) == list(range(0, 100, 10))
    assert ids(plan.for_epoch(1)) != ids(plan.for_epoch(2))
    assert ids(plan.for_epoch(0)) == ids(plan)


# -- shuffles below other operations --------------------------------------------------------


def test_a_shuffle_below_map_and_union_is_made_anew_in_each_epoch() -> None:
    shuffled = numbered(50, 10).random_shuffle(seed=1)
    union = shuffled.map(lambda row: {"id": row["id"] + 1000}).union(numbered(50, 10).randomize_block_order(seed=2))
    first, second = ids(union.plan.for_epoch(1)), ids(union.plan.for_epoch(2))
    assert first[:50] != second[:50]
    assert first[50:] != second[50:]
    assert sorted(first) == sorted(second)


@pytest.mark.parametrize("how", ["rows", "rows then map", "blocks", "rows then filter"])
def test_the_parts_of_a_split_keep_their_rows_in_all_epochs(how: str) -> None:
    dataset = numbered(100, 5)
    by_blocks = how == "blocks"
    shuffled = dataset.randomize_block_order(seed=7) if by_blocks else dataset.random_shuffle(seed=7, num_blocks=16)
    if how == "rows then map":
        shuffled = shuffled.map(lambda row: row)
    if how == "rows then filter":
        shuffled = shuffled.filter(lambda row: True)
    train, test = shuffled.train_test_split(0.25)
    first = (ids(train.plan), ids(test.plan))
    assert sorted(first[0] + first[1]) == list(range(100))
    assert len(first[1]) == 25
    for epoch in range(1, 4):
        assert sorted(ids(train.plan.for_epoch(epoch))) == sorted(first[0])
        assert sorted(ids(test.plan.resolved().for_epoch(epoch))) == sorted(first[1])
        assert ids(train.plan.for_epoch(epoch)) != first[0]
    part, _ = train.split(2)
    assert sorted(ids(part.plan.for_epoch(2))) == sorted(first[0][: len(ids(part.plan))])


def test_zip_pairs_the_same_rows_in_all_epochs() -> None:
    left = numbered(20, 5).random_shuffle(seed=1)
    right = data.range(20).random_shuffle(seed=2).rename_columns({"id": "other"})
    plan = left.zip(right).plan
    rows = pa.Table.from_batches(list(plan.read(0, ReadRequest())))
    again = pa.Table.from_batches(list(plan.for_epoch(3).read(0, ReadRequest())))
    assert rows.equals(again)
