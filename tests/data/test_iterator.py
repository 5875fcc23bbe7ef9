"""The shard of a worker: epochs, shares, and batches that belong to the user."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline.data
from paceline.air.errors import ConfigError, DataError
from paceline.data import Dataset
from paceline.data.ingest.prepare import prepared
from paceline.data.iterator import DataIterator


def shards(dataset: Dataset, workers: int, **settings: Any) -> list[DataIterator]:
    ready = prepared("train", dataset, split=True, **settings)
    return [DataIterator(ready, rank, workers) for rank in range(workers)]


def ids(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch["id"]]


@pytest.fixture
def many_small_blocks(tmp_path: Path) -> Dataset:
    """1,000 rows in 143 row groups of 7."""
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "rows.parquet", row_group_size=7)
    return paceline.data.read_parquet(str(tmp_path))


# -- rows as a dataset --------------------------------------------------------------------


def test_the_rows_of_a_shard_can_be_kept_as_a_dataset() -> None:
    first, second = shards(paceline.data.range(10), 2)
    kept = [shard.materialize() for shard in (first, second)]
    assert sorted(row["id"] for part in kept for row in part.take_all()) == list(range(10))
    assert first.epoch == 0  # not counted as a pass
    under_way = iter(first.iter_batches(batch_size=2))
    next(under_way)
    assert first.materialize().count() == 3  # what is left of the pass
    assert len(list(under_way)) == 2
    doubled = kept[0].map_batches(lambda batch: {"id": batch["id"] * 2}).random_shuffle(seed=1)
    assert doubled.sum("id") == 2 * kept[0].sum("id")


def test_a_shard_says_where_the_methods_of_a_dataset_belong() -> None:
    shard = paceline.data.range(3).iterator()
    with pytest.raises(AttributeError, match=r"map_batches\(\).*on the dataset.*materialize\(\)"):
        shard.map_batches(lambda batch: batch)
    with pytest.raises(AttributeError, match=r"random_shuffle_each_window\(\): call random_shuffle\(\)"):
        shard.random_shuffle_each_window()
    with pytest.raises(AttributeError, match="has no attribute 'no_such_thing'"):
        shard.no_such_thing  # noqa: B018


# -- epochs -------------------------------------------------------------------------------


def test_every_iteration_is_a_new_epoch() -> None:
    shard = paceline.data.range(10).random_shuffle(seed=1).iterator()
    batches = shard.iter_torch_batches(batch_size=4)
    orders = []
    for epoch in range(3):
        assert shard.epoch == epoch
        orders.append(ids(batches))  # one iterable serves all epochs
    assert shard.epoch == 3
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len(set(map(tuple, orders))) == 3


def test_epochs_are_the_same_in_another_process_with_the_same_seed() -> None:
    def orders() -> list[list[int]]:
        shard = paceline.data.range(50).random_shuffle(seed=7).iterator()
        return [ids(shard.iter_batches(batch_size=8)) for _ in range(3)]

    assert orders() == orders()
    other = paceline.data.range(50).random_shuffle(seed=8).iterator()
    assert ids(other.iter_batches()) != orders()[0]


def test_leaving_an_epoch_early_ends_it() -> None:
    shard = paceline.data.range(10).iterator()
    for batch in shard.iter_batches(batch_size=4):
        assert batch["id"].tolist() == [0, 1, 2, 3]
        assert shard.epoch == 0
        break
    assert shard.epoch == 1
    assert ids(shard.iter_batches(batch_size=4)) == list(range(10))


def test_a_pass_that_somebody_keeps_hold_of_can_be_ended_for_them() -> None:
    shard = paceline.data.range(10).iterator()
    batches = shard.iter_batches(batch_size=4)
    batches.end_pass()  # there is none
    kept = iter(batches)
    next(kept)
    batches.end_pass()
    assert shard.epoch == 1
    assert shard.state_dict()["legs"] == []
    assert list(kept) == []
    next(batches)
    batches.end_pass()
    assert ids(batches) == list(range(10))
    assert shard.epoch == 3


def test_rows_left_are_those_of_the_pass_that_is_under_way_also_with_other_workers() -> None:
    dataset = prepared("train", paceline.data.range(20), split=True)
    alone = DataIterator(dataset)
    assert alone.rows_left() == 20
    batches = iter(alone.iter_batches(batch_size=4))
    next(batches)
    assert alone.rows_left() == 16
    one_of_two = DataIterator(dataset, rank=1, workers=2)
    one_of_two.load_state_dict([alone.state_dict()])
    assert one_of_two.rows_left() == 8
    assert len(ids(one_of_two.iter_batches(batch_size=4))) == 8
    assert one_of_two.rows_left() == 10


def test_a_pass_that_nobody_ended_is_ended_by_the_next_one() -> None:
    shard = paceline.data.range(10).iterator()
    kept = iter(shard.iter_batches(batch_size=4))
    next(kept)
    assert ids(shard.iter_batches(batch_size=4)) == list(range(10))
    assert shard.epoch == 2
    assert ids(kept) == list(range(4, 10))  # the earlier one still works, and counts for nothing
    assert shard.epoch == 2


def test_next_works_on_what_iter_batches_gives() -> None:
    batches = paceline.data.range(5).iterator().iter_batches(batch_size=2)
    assert next(batches)["id"].tolist() == [0, 1]
    assert next(batches)["id"].tolist() == [2, 3]
    assert len(batches) == 3


def test_looking_at_rows_is_no_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    shard = paceline.data.range(10).iterator()
    before = shard.state_dict()
    assert shard.take(2) == [{"id": 0}, {"id": 1}]
    shard.show(1)
    assert capsys.readouterr().out == "{'id': 0}\n"
    assert shard.schema().names == shard.columns() == ["id"]
    assert shard.count() == 10
    assert shard.take_batch(3)["id"].tolist() == [0, 1, 2]
    assert len(shard.take_all()) == len(shard.to_pandas()) == 10
    assert shard.rows_left_out() == []
    assert shard.state_dict() == before
    assert ids(shard.iter_batches()) == list(range(10))


def test_looking_in_the_middle_of_an_epoch_does_not_disturb_it() -> None:
    shard = paceline.data.range(10).iterator()
    batches = iter(shard.iter_batches(batch_size=3))
    next(batches)
    assert shard.take(2) == [{"id": 3}, {"id": 4}]
    assert ids(batches) == list(range(3, 10))
    assert shard.epoch == 1


def test_iter_rows_counts_rows_one_by_one() -> None:
    shard = paceline.data.range(10).iterator()
    rows = shard.iter_rows()
    assert [next(rows)["id"] for _ in range(4)] == [0, 1, 2, 3]
    again = paceline.data.range(10).iterator()
    again.load_state_dict(shard.state_dict())
    assert [row["id"] for row in again.iter_rows()] == [4, 5, 6, 7, 8, 9]


def test_iter_epochs_goes_on_from_the_current_one() -> None:
    shard = paceline.data.range(4).iterator()
    ids(shard.iter_batches())
    seen = [(each.epoch, ids(each.iter_batches())) for each in shard.iter_epochs(3)]
    assert seen == [(1, [0, 1, 2, 3]), (2, [0, 1, 2, 3])]


def test_stats_say_where_the_time_went() -> None:
    shard = paceline.data.range(100).filter(lambda row: row["id"] < 50).iterator()
    assert "nothing has been iterated" in shard.stats()
    ids(shard.iter_batches(batch_size=10))
    assert "50 rows in 5 batches" in shard.stats()
    assert "counting the rows took one pass" in shard.stats()


# -- shares -------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("shuffle", ["none", "blocks", "rows"])
def test_the_shards_of_all_ranks_are_the_dataset(many_small_blocks: Dataset, shuffle: Any, workers: int) -> None:
    parts = [ids(shard.iter_batches(batch_size=32)) for shard in shards(many_small_blocks, workers, shuffle=shuffle)]
    assert sorted(number for part in parts for number in part) == list(range(1000))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    together = [number for part in parts for number in part]
    whole = ids(DataIterator(prepared("train", many_small_blocks, shuffle=shuffle)).iter_batches())
    assert (together == whole) == (shuffle == "none")  # unseeded: another order each time


def test_the_order_of_an_epoch_does_not_depend_on_the_number_of_workers(many_small_blocks: Dataset) -> None:
    orders = []
    for workers in (1, 2, 5):
        parts = [ids(shard.iter_batches()) for shard in shards(many_small_blocks, workers, shuffle="rows", seed=3)]
        orders.append([number for part in parts for number in part])
    assert orders[0] == orders[1] == orders[2]


def test_equal_shares_have_equally_many_batches_and_rotate_what_they_leave_out() -> None:
    ranks = shards(paceline.data.range(11), 3, uneven="equal")
    left_out: list[int] = []
    for epoch in range(11):
        announced = [shard.rows_left_out() for shard in ranks]
        assert announced == [announced[0]] * 3
        assert ranks[0].rows_left_out(epoch) == announced[0]
        parts = [[batch["id"].tolist() for batch in shard.iter_batches(batch_size=2)] for shard in ranks]
        assert [list(map(len, part)) for part in parts] == [[2, 1]] * 3
        seen = sorted(number for part in parts for batch in part for number in batch)
        assert sorted([*seen, *announced[0]]) == list(range(11))
        left_out += announced[0]
    assert sorted(left_out) == sorted(list(range(11)) * 2)  # every row is left out equally often


def test_three_rows_for_four_workers() -> None:
    parts = [ids(shard.iter_batches()) for shard in shards(paceline.data.range(3), 4)]
    assert parts == [[0], [1], [2], []]
    empty = shards(paceline.data.range(3), 4)[3]
    assert empty.count() == 0
    assert empty.take() == []
    assert list(empty.to_pandas().columns) == ["id"]
    assert len(empty.to_pandas()) == 0


def test_an_empty_dataset_is_an_epoch_without_batches() -> None:
    shard = paceline.data.range(10).filter(lambda row: False).iterator()
    assert list(shard.iter_batches()) == []
    assert shard.epoch == 1
    assert list(shard.iter_rows()) == []
    assert shard.state_dict()["epoch"] == 2


def test_a_dataset_that_is_not_split_is_whole_for_every_rank() -> None:
    ready = prepared("valid", paceline.data.range(5))
    for rank in range(3):
        shard = DataIterator(ready, rank, 3)
        assert ids(shard.iter_batches()) == [0, 1, 2, 3, 4]
        assert shard.rows_left_out() == []


# -- batches ------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 64, 333])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_only_the_last_batch_is_short(
    many_small_blocks: Dataset, window: int | None, drop_last: bool, prefetch: int
) -> None:
    shard = many_small_blocks.iterator()
    options: dict[str, Any] = {
        "batch_size": 64,
        "drop_last": drop_last,
        "prefetch_batches": prefetch,
        "local_shuffle_buffer_size": window,
    }
    for epoch in range(2):
        sizes = [len(batch["id"]) for batch in shard.iter_batches(**options)]
        assert sizes == [64] * 15 + ([] if drop_last else [40]), f"epoch {epoch}"


def test_a_local_shuffle_mixes_rows_within_its_window() -> None:
    shard = paceline.data.range(1000).iterator()
    options: dict[str, Any] = {"batch_size": 50, "local_shuffle_buffer_size": 100, "local_shuffle_seed": 3}
    first, second = ids(shard.iter_batches(**options)), ids(shard.iter_batches(**options))
    assert sorted(first) == sorted(second) == list(range(1000))
    assert first != second
    assert all(abs(place - number) < 100 for place, number in enumerate(first))
    again = paceline.data.range(1000).iterator()
    assert ids(again.iter_batches(**options)) == first


def test_bad_batch_options_are_refused_where_they_are_given() -> None:
    shard = paceline.data.range(10).iterator()
    for wrong in (
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"prefetch_batches": -1},
        {"batch_size": 10, "local_shuffle_buffer_size": 5},
        {"local_shuffle_buffer_size": 300, "local_shuffle_seed": -1},
    ):
        with pytest.raises(ConfigError, match=next(reversed(wrong))):
            shard.iter_batches(**wrong)
    with pytest.raises(DataError, match="dtypes="):
        shard.iter_torch_batches(collate_fn=lambda batch: batch, dtypes={"id": None})
    with pytest.raises(ValueError, match="batch_format"):
        shard.iter_batches(batch_format="lists")


@pytest.mark.parametrize("equal", [True, False])
def test_streaming_split_gives_each_consumer_its_share(equal: bool) -> None:
    parts = paceline.data.range(103).streaming_split(4, equal=equal)
    seen = [[int(number) for batch in part.iter_batches(batch_size=8) for number in batch["id"]] for part in parts]
    sizes = [len(rows) for rows in seen]
    assert sizes == ([25] * 4 if equal else [26, 26, 26, 25])
    together = sorted(row for rows in seen for row in rows)
    left_out = parts[0].rows_left_out(0)
    assert sorted([*together, *left_out]) == list(range(103))


def test_to_pandas_of_too_many_rows_reads_no_more_than_it_must() -> None:
    read: list[int] = []

    def note(batch: dict[str, Any]) -> dict[str, Any]:
        read.append(len(batch["id"]))
        return batch

    shard = DataIterator(prepared("train", paceline.data.range(10_000).map_batches(note, batch_size=100)))
    read.clear()  # the rows have been counted
    with pytest.raises(DataError, match="limit=50"):
        shard.to_pandas(limit=50)
    assert sum(read) < 10_000
    assert shard.epoch == 0


# -- waiting for batches ------------------------------------------------------------------


class Told:
    """A clock that keeps what it is told."""

    def __init__(self) -> None:
        self.batches: list[tuple[float, float]] = []
        self.waits: list[float] = []

    def took_batch(self, asked: float, given: float) -> None:
        self.batches.append((asked, given))

    def waited_for_data(self, seconds: float) -> None:
        self.waits.append(seconds)


@pytest.mark.parametrize("way", ["iter_batches", "iter_torch_batches", "to_torch"])
def test_the_clock_is_told_about_each_batch(way: str) -> None:
    (shard,) = shards(paceline.data.range(10), 1)
    shard.clock = told = Told()
    taken = []
    for _ in getattr(shard, way)(batch_size=4):
        taken.append(time.perf_counter())
    assert len(taken) == len(told.batches) == 3
    for (asked, given), after in zip(told.batches, taken, strict=True):
        assert asked <= given <= after
    for before, (asked, _) in zip(taken, told.batches[1:], strict=False):
        assert before <= asked  # what the loop does between two batches is not waiting


def test_single_rows_are_waited_for_but_are_no_batches(many_small_blocks: Dataset) -> None:
    (shard,) = shards(many_small_blocks, 1)
    shard.clock = told = Told()
    assert len(list(shard.iter_rows())) == 1000
    assert not told.batches
    assert told.waits


def test_looking_at_rows_is_not_measured() -> None:
    (shard,) = shards(paceline.data.range(10), 1)
    shard.clock = told = Told()
    shard.take(3)
    shard.take_batch(2)
    shard.materialize()
    assert not told.batches
    assert not told.waits
