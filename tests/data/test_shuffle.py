"""Random orders: of rows, of blocks, epoch by epoch."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import paceline.data.store as store_module
from paceline import data
from paceline.air.errors import ConfigError
from paceline.data.block import ReadRequest, Source
from paceline.data.dataset import Dataset
from paceline.data.permutation import block_permutation, permute
from paceline.data.sources.memory import TableSource


def ids(source: Source, chunk_rows: int = 1000) -> list[int]:
    return [
        value
        for block in range(len(source.blocks()))
        for chunk in source.read(block, ReadRequest(chunk_rows=chunk_rows))
        for value in chunk.column("id").to_pylist()
    ]


def numbered(rows: int, block_rows: int) -> Dataset:
    return Dataset(TableSource(pa.table({"id": np.arange(rows)}), block_rows))


# -- the permutation ------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 99, 100, 101, 1023, 4097, 30_000])
def test_every_row_has_one_place(n: int) -> None:
    for seed, epoch in [(0, 0), (1, 0), (0, 1), (-5, 3), (2**63, 99)]:
        assert np.array_equal(np.sort(block_permutation(n, seed, epoch)), np.arange(n))


def test_any_part_of_an_order_is_the_same_on_its_own() -> None:
    whole = block_permutation(10_007, 3, 4)
    assert np.array_equal(permute(np.array([5, 9_000, 5]), 10_007, 3, 4), whole[[5, 9_000, 5]])
    assert permute(np.array([], np.int64), 0, 3, 4).size == 0
    with pytest.raises(ValueError, match="positions"):
        permute(np.array([7]), 7, 0, 0)


def test_the_order_is_fixed_for_all_times() -> None:
    """A position in a checkpoint means the same rows in later versions."""
    assert block_permutation(8, 42, 1).tolist() == [7, 0, 2, 1, 6, 3, 4, 5]


def test_large_numbers_of_rows_need_no_memory() -> None:
    rows = 10**15
    places = permute(np.arange(1000), rows, 1, 1)
    assert len(np.unique(places)) == 1000
    assert 0 <= places.min() < rows * 0.01
    assert rows * 0.99 < places.max() < rows


def test_all_orders_of_a_few_rows_are_about_equally_likely() -> None:
    seen = Counter(tuple(block_permutation(4, seed, 0)) for seed in range(4800))
    assert len(seen) == 24
    assert min(seen.values()) > 140  # 200 expected, with a deviation of 14
    assert max(seen.values()) < 260


def test_rows_go_everywhere_and_neighbours_are_parted() -> None:
    n, epochs = 40, 2000
    table = np.zeros((n, n))
    for epoch in range(epochs):
        table[np.arange(n), block_permutation(n, 7, epoch)] += 1
    expected = epochs / n
    deviation = ((table - expected) ** 2 / expected).sum() / (n - 1) ** 2
    assert 0.85 < deviation < 1.15  # chi square per degree of freedom
    order = block_permutation(100_000, 11, 0)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(np.arange(len(order)), order)[0, 1]) < 0.02


# -- rows -----------------------------------------------------------------------------------


def test_random_shuffle_has_every_row_once_and_one_order_per_seed() -> None:
    dataset = numbered(1000, 64).random_shuffle(seed=3)
    first = ids(dataset._plan)
    assert sorted(first) == list(range(1000))
    assert first != sorted(first)
    assert first == ids(numbered(1000, 64).random_shuffle(seed=3)._plan, chunk_rows=17)
    assert first == ids(numbered(1000, 100).random_shuffle(seed=3)._plan)  # blocks do not matter
    assert first != ids(numbered(1000, 64).random_shuffle(seed=4)._plan)


def test_without_a_seed_a_dataset_still_has_one_order() -> None:
    dataset = numbered(200, 64).random_shuffle()
    assert ids(dataset._plan) == ids(dataset._plan)
    assert ids(dataset._plan) != ids(numbered(200, 64).random_shuffle()._plan)


def test_epochs_have_other_orders_and_store_the_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    dataset = numbered(100, 64).map_batches(lambda batch: calls.append(1) or batch)
    plan = dataset.random_shuffle(seed=3)._plan
    orders = [tuple(ids(plan.for_epoch(epoch))) for epoch in range(3)]
    assert len(set(orders)) == 3
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert orders[1] == tuple(ids(plan.resolved().for_epoch(1)))
    # One call for the schema, two blocks counted, two blocks stored.
    assert len(calls) <= 5


def test_shuffled_rows_beyond_memory_come_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MEMORY_BYTES", 1_000)
    monkeypatch.setattr(store_module, "BATCH_BYTES", 1_000)
    plan = numbered(5000, 512).random_shuffle(seed=3)._plan.resolved()
    assert plan.source.child.descriptor is not None
    assert sorted(ids(plan)) == list(range(5000))


def test_a_resolved_shuffle_travels_with_its_rows_and_not_with_what_made_them() -> None:
    plan = numbered(100, 64).map(lambda row: row).random_shuffle(seed=3)._plan.resolved()
    copy = pickle.loads(pickle.dumps(plan))  # the function of map could not be pickled
    assert ids(copy) == ids(plan)


def test_num_blocks_is_what_was_asked_for() -> None:
    dataset = numbered(10, 3).random_shuffle(seed=1, num_blocks=4)
    assert [block.rows for block in dataset._plan.blocks()] == [2, 3, 2, 3]
    shuffled = numbered(10, 3).repartition(4, shuffle=True)
    assert shuffled.num_blocks() == 4
    assert sorted(ids(shuffled._plan)) == list(range(10))
    with pytest.raises(ConfigError, match="num_blocks"):
        numbered(10, 3).random_shuffle(num_blocks=0)


def test_an_empty_dataset_can_be_shuffled() -> None:
    dataset = numbered(0, 1).random_shuffle(seed=1)
    assert dataset.count() == 0
    assert dataset.randomize_block_order(seed=1).count() == 0
    assert ids(dataset._plan) == []


# -- blocks ---------------------------------------------------------------------------------


def test_randomize_block_order_keeps_blocks_together() -> None:
    plan = numbered(100, 10).randomize_block_order(seed=5)._plan
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
    first, second = ids(union._plan.for_epoch(1)), ids(union._plan.for_epoch(2))
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
    first = (ids(train._plan), ids(test._plan))
    assert sorted(first[0] + first[1]) == list(range(100))
    assert len(first[1]) == 25
    for epoch in range(1, 4):
        assert sorted(ids(train._plan.for_epoch(epoch))) == sorted(first[0])
        assert sorted(ids(test._plan.resolved().for_epoch(epoch))) == sorted(first[1])
        assert ids(train._plan.for_epoch(epoch)) != first[0]
    part, _ = train.split(2)
    assert sorted(ids(part._plan.for_epoch(2))) == sorted(first[0][: len(ids(part._plan))])


def test_zip_pairs_the_same_rows_in_all_epochs() -> None:
    left = numbered(20, 5).random_shuffle(seed=1)
    right = data.range(20).random_shuffle(seed=2).rename_columns({"id": "other"})
    plan = left.zip(right)._plan
    rows = pa.Table.from_batches(list(plan.read(0, ReadRequest())))
    again = pa.Table.from_batches(list(plan.for_epoch(3).read(0, ReadRequest())))
    assert rows.equals(again)
