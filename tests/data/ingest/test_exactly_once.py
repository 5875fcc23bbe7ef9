"""Every row exactly once per epoch, by the shards of all ranks together, through any stops and numbers of workers.

No processes here: ranks are iterators of this process that hand out a few batches each, are thrown away,
and are made anew from their states, as a run does it. The same with real processes that are killed is
in tests/faults.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline.data
from paceline.data import Dataset
from paceline.data.ingest.prepare import prepared
from paceline.data.ingest.prepared import Parcel, PreparedDataset, merge_states, state_for
from paceline.data.iterator import DataIterator
from paceline.engine.serialization import loads, pickled

ROWS = 613


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of several row groups each, none of them of a round number of rows."""
    folder = tmp_path_factory.mktemp("parquet")
    bounds = [0, 101, 280, 281, ROWS]
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        table = pa.table(
            {"id": pa.array(range(start, stop), pa.int64()), "name": [f"r{i}" for i in range(start, stop)]}
        )
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=37)
    return folder


SOURCES: dict[str, Callable[[Path], Dataset]] = {
    "parquet": lambda folder: paceline.data.read_parquet(str(folder)),
    "items": lambda _: paceline.data.from_items([{"id": i, "text": str(i)} for i in range(ROWS)]),
    "range": lambda _: paceline.data.range(ROWS),
    "filtered": lambda folder: paceline.data.read_parquet(str(folder)).filter(lambda row: row["id"] % 3 != 0),
    "mapped": lambda folder: paceline.data.read_parquet(str(folder)).map_batches(double, batch_size=10),
    "flat_mapped": lambda _: paceline.data.range(ROWS // 2).flat_map(twice),
    "sorted": lambda _: paceline.data.range(ROWS).sort("id", descending=True),
    "union": lambda folder: paceline.data.read_parquet(str(folder), columns=["id"]).union(numbers(ROWS, ROWS + 50)),
    "limited": lambda folder: paceline.data.read_parquet(str(folder)).limit(200),
    "random_shuffle": lambda _: paceline.data.range(ROWS).random_shuffle(seed=5),
    "random_shuffle, then filtered": lambda _: (
        paceline.data.range(ROWS).random_shuffle(seed=5).filter(lambda row: row["id"] % 2 == 0)
    ),
    "randomize_block_order": lambda folder: paceline.data.read_parquet(str(folder)).randomize_block_order(seed=5),
    "shuffled split": lambda _: paceline.data.range(ROWS).train_test_split(0.25, shuffle=True, seed=3)[0],
}


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "twice": batch["id"] * 2}


def twice(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": 2 * row["id"]}, {"id": 2 * row["id"] + 1}]


def numbers(start: int, stop: int) -> Dataset:
    return paceline.data.from_items([{"id": number} for number in range(start, stop)])


class Ranks:
    """The ranks of a run, each of which begins the next epoch as soon as it has no more rows of the one before."""

    def __init__(self, dataset: PreparedDataset, **options: Any) -> None:
        self.dataset = dataset
        self.options = options
        self.stored: dict[str, Any] = {}
        self.kept: dict[int, list[int]] = {}
        """By epoch, the ids that were handed out before a checkpoint that survived."""
        self.left_out: dict[int, list[int]] = {}

    def start(self, workers: int) -> None:
        self.shards = [DataIterator(self.dataset, rank, workers) for rank in range(workers)]
        for rank, shard in enumerate(self.shards):
            state = state_for(self.stored["train"], rank, workers) if self.stored else None
            if state is not None:
                shard.load_state_dict(state)
        self.batches = [iter(shard.iter_batches(**self.options)) for shard in self.shards]
        self.given: list[tuple[int, int]] = []

    def go(self, rank: int, batches: int, last_epoch: int = 10**6) -> None:
        """Hand out some batches of a rank, none of them after `last_epoch`."""
        shard = self.shards[rank]
        while batches and shard.epoch <= last_epoch:
            epoch = shard.epoch
            self.left_out[epoch] = shard.rows_left_out()
            batch = next(self.batches[rank], None)
            if batch is None:
                self.batches[rank] = iter(shard.iter_batches(**self.options))
                assert shard.epoch == epoch + 1
                continue
            assert len(batch["id"]) <= self.options["batch_size"]
            self.given += [(epoch, number) for number in batch["id"].tolist()]
            batches -= 1

    def checkpoint(self) -> None:
        """What was handed out so far counts; what comes after it, up to the next checkpoint, may be lost."""
        states = [json.loads(json.dumps(shard.state_dict())) for shard in self.shards]
        self.stored = merge_states([{"train": state} for state in states], {"train": self.dataset.split})
        for epoch, number in self.given:
            self.kept.setdefault(epoch, []).append(number)
        self.given = []


def as_it_travels(dataset: PreparedDataset) -> PreparedDataset:
    """What a worker makes of what the driver sends."""
    packed = pickled(Parcel({"train": dataset}), "datasets")
    parcel: Parcel = loads(*packed)
    return parcel.unpack()["train"]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"batch_size": 10},
    "large batches": {"batch_size": 50, "prefetch_batches": 3},
    "local shuffle": {"batch_size": 8, "local_shuffle_buffer_size": 30},
    "local shuffle with a seed": {"batch_size": 7, "local_shuffle_buffer_size": 21, "local_shuffle_seed": 4},
    "no reading ahead": {"batch_size": 13, "prefetch_batches": 0},
}


SHUFFLES = ["none", "blocks", "rows"]
STOPS = [
    # Every source, shuffle and option stays in the everyday suite; the other combinations are repetitions.
    pytest.param(source, shuffle, options, marks=[] if place == number % 3 else pytest.mark.slow)
    for number, (source, options) in enumerate(zip(SOURCES, itertools.cycle(OPTIONS), strict=False))
    for place, shuffle in enumerate(SHUFFLES)
]


@pytest.mark.parametrize(("source", "shuffle", "options"), STOPS)
def test_all_rows_once_though_ranks_stop_anywhere_and_their_number_changes(
    source: str, shuffle: Any, options: str, parquet: Path
) -> None:
    """uneven="all": ranks go at their own pace, so that some are in the next epoch while others are not."""
    rng = random.Random(f"{source} {shuffle} {options}")
    dataset = SOURCES[source](parquet)
    everything = sorted(row["id"] for row in dataset.take_all())
    ready = prepared("train", dataset, split=True, uneven="all", shuffle=shuffle, seed=rng.randrange(99))
    ranks = Ranks(as_it_travels(ready), **OPTIONS[options])
    for workers in (2, 2, 1, 3, 5):
        ranks.start(workers)
        for rank in range(workers):
            ranks.go(rank, rng.randrange(6))
        ranks.checkpoint()
        for rank in range(workers):
            ranks.go(rank, rng.randrange(3))  # lost: the checkpoint does not know of it
    ranks.start(2)
    last = max(shard.epoch + 1 for shard in ranks.shards)
    for rank in range(2):
        ranks.go(rank, 10**6, last_epoch=last)
    ranks.checkpoint()
    for epoch in range(last + 1):
        assert sorted(ranks.kept[epoch]) == everything, f"epoch {epoch}"
    assert not any(ranks.left_out.values())


EQUAL = [
    pytest.param(source, shuffle, options, marks=[] if (number + place + turn) % 3 == 0 else pytest.mark.slow)
    for number, source in enumerate(["parquet", "filtered", "random_shuffle"])
    for place, shuffle in enumerate(SHUFFLES)
    for turn, options in enumerate(["plain", "local shuffle"])
]


@pytest.mark.parametrize(("source", "shuffle", "options"), EQUAL)
def test_equal_shares_give_all_rows_once_but_those_announced(
    source: str, shuffle: Any, options: str, parquet: Path
) -> None:
    """uneven="equal": ranks go in step, as those of a training with collectives do."""
    rng = random.Random(f"{source} {shuffle} {options}")
    dataset = SOURCES[source](parquet)
    numbered = [row["id"] for row in paceline.data.Dataset(prepared("train", dataset).plan).take_all()]
    ready = prepared("train", dataset, split=True, uneven="equal", shuffle=shuffle, seed=rng.randrange(99))
    ranks = Ranks(as_it_travels(ready), **OPTIONS[options])
    for workers in (2, 2, 1, 3, 5):
        ranks.start(workers)
        for lost in (False, True):
            batches = rng.randrange(6)
            for rank in range(workers):
                ranks.go(rank, batches)
            assert len({shard.epoch for shard in ranks.shards}) == 1
            if not lost:
                ranks.checkpoint()
    ranks.start(3)
    last = ranks.shards[0].epoch + 1
    for rank in range(3):
        ranks.go(rank, 10**6, last_epoch=last)
    ranks.checkpoint()
    for epoch in range(last + 1):
        announced = [numbered[row] for row in ranks.left_out[epoch]]
        assert sorted([*ranks.kept[epoch], *announced]) == sorted(numbered), f"epoch {epoch}"
    assert any(ranks.left_out.values())


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_with_as_many_workers_as_before_the_order_is_that_of_an_uninterrupted_run(
    shuffle: Any, options: str, parquet: Path
) -> None:
    rng = random.Random(f"{shuffle} {options}")
    ready = prepared("train", SOURCES["parquet"](parquet), split=True, uneven="all", shuffle=shuffle, seed=8)
    expected = []
    for rank in range(2):
        shard = DataIterator(ready, rank, 2)
        expected.append([ids(shard.iter_batches(**OPTIONS[options])) for _ in range(2)])
    states: list[Any] = [None, None]
    seen: list[list[list[int]]] = [[[], []], [[], []]]
    while not all(state is not None and state["epoch"] == 2 for state in states):
        for rank in range(2):
            shard = DataIterator(ready, rank, 2)
            if states[rank] is not None:
                shard.load_state_dict(states[rank])
            epoch = shard.epoch
            if epoch == 2:
                continue
            batches = iter(shard.iter_batches(**OPTIONS[options]))
            for batch in itertools.islice(batches, rng.randrange(1, 6)):
                seen[rank][epoch] += batch["id"].tolist()
            states[rank] = shard.state_dict()
            if shard.epoch == epoch and shard.count() == len(seen[rank][epoch]):
                assert next(batches, None) is None
                states[rank] = shard.state_dict()
    assert seen == expected


def ids(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]
