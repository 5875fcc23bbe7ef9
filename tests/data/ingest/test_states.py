"""States of shards: what they hold, who may load them, and where reading resumes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline.data
from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, DataError
from paceline.data import Dataset
from paceline.data.block import ReadRequest
from paceline.data.ingest.position import ReadPosition
from paceline.data.ingest.prepare import prepared
from paceline.data.ingest.prepared import PreparedDataset, merge_states, problem_with, state_for
from paceline.data.iterator import DataIterator
from paceline.data.plan import Plan
from paceline.data.sources.computed import RangeSource
from paceline.train.data_parallel_trainer import DataParallelTrainer


def shards(dataset: Dataset, workers: int, **settings: Any) -> list[DataIterator]:
    ready = prepared("train", dataset, split=True, **settings)
    return [DataIterator(ready, rank, workers) for rank in range(workers)]


def ids(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch["id"]]


def test_a_state_is_a_few_plain_numbers() -> None:
    shard = shards(paceline.data.range(100), 2)[1]
    next(iter(shard.iter_batches(batch_size=10)))
    state = shard.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) < 200


def test_a_state_counts_what_was_handed_out_not_what_was_read_ahead() -> None:
    shard = paceline.data.range(1000).iterator()
    batches = iter(shard.iter_batches(batch_size=10, prefetch_batches=8))
    next(batches)
    again = paceline.data.range(1000).iterator()
    again.load_state_dict(shard.state_dict())
    assert next(iter(again.iter_batches(batch_size=10)))["id"][0] == 10


def test_a_state_that_was_loaded_and_not_used_is_the_same_state() -> None:
    shard = shards(paceline.data.range(100), 2)[1]
    batches = iter(shard.iter_batches(batch_size=10))
    next(batches)
    again = shards(paceline.data.range(100), 2)[1]
    again.load_state_dict(shard.state_dict())
    assert again.state_dict() == shard.state_dict()


def test_states_of_all_ranks_let_another_number_of_workers_go_on() -> None:
    before = shards(paceline.data.range(100), 2)
    seen, states = [], []
    for shard, batches in ((before[0], 3), (before[1], 1)):
        passing = iter(shard.iter_batches(batch_size=10))
        for _ in range(batches):
            seen += next(passing)["id"].tolist()
        states.append(shard.state_dict())
    after = shards(paceline.data.range(100), 3)
    for shard in after:
        shard.load_state_dict(states)
    rest = [ids(shard.iter_batches(batch_size=10)) for shard in after]
    assert sorted([*seen, *(number for part in rest for number in part)]) == list(range(100))
    assert [len(part) for part in rest] == [20, 20, 20]
    with pytest.raises(DataError, match=r"2 workers.* 3\b"):
        after[0].load_state_dict(states[0])


def test_another_local_shuffle_in_the_middle_of_an_epoch_repeats_nothing() -> None:
    shard = paceline.data.range(100).iterator()
    batches = iter(shard.iter_batches(batch_size=10, local_shuffle_buffer_size=30))
    seen = next(batches)["id"].tolist() + next(batches)["id"].tolist()
    again = paceline.data.range(100).iterator()
    again.load_state_dict(shard.state_dict())
    assert sorted(seen + ids(again.iter_batches(batch_size=10))) == list(range(100))


def test_states_that_do_not_fit_are_refused() -> None:
    shard = paceline.data.range(100).iterator()
    with pytest.raises(DataError, match="99 rows"):
        shard.load_state_dict(paceline.data.range(99).iterator().state_dict())
    with pytest.raises(DataError, match="state of a dataset shard"):
        shard.load_state_dict({"epoch": 3})
    with pytest.raises(DataError, match=r"states.*empty"):
        shard.load_state_dict([])
    assert ids(shard.iter_batches()) == list(range(100))


def test_states_of_datasets_that_every_rank_reads_whole_stay_with_their_rank() -> None:
    states = [{"valid": ReadPosition(rank, 0, 10, 1).as_json()} for rank in range(2)]
    stored = merge_states(states, {"valid": False})["valid"]
    assert (state_for(stored, 1, 2) or {})["epoch"] == 1
    assert (state_for(stored, 2, 3) or {})["epoch"] == 0
    ten = PreparedDataset("valid", Plan(RangeSource(10, block_rows=10)), split=False)
    assert problem_with(stored, ten) is None
    twenty = PreparedDataset("valid", Plan(RangeSource(20, block_rows=20)), split=False)
    assert "20 in 1" in str(problem_with(stored, twenty))
    assert "is split" in str(problem_with(stored, replace(ten, split=True)))
    problem = str(problem_with(stored, replace(ten, shuffle="rows")))
    assert "'none'" in problem
    assert "'rows'" in problem


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(DataError, match="state of a dataset shard"):
        ReadPosition.from_json({"epoch": 1})
    assert "cannot be read" in str(problem_with({"legs": 3}, PreparedDataset("x", Plan(RangeSource(1)), split=True)))


def test_a_position_in_a_dataset_that_was_made_with_another_seed_is_not_taken_over() -> None:
    def train_part(seed: int) -> DataIterator:
        train, _ = paceline.data.range(100).train_test_split(0.2, shuffle=True, seed=seed)
        return train.iterator()

    one = train_part(1)
    next(one.iter_batches(batch_size=10))
    state = one.state_dict()
    train_part(1).load_state_dict(state)
    with pytest.raises(DataError, match="another seed"):
        train_part(2).load_state_dict(state)
    sampled = paceline.data.range(100).random_sample(0.5, seed=1).materialize().iterator()
    assert sampled.state_dict()["mark"] != 0


def test_after_an_interrupted_local_shuffle_few_reads_bring_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 4000
    pq.write_table(pa.table({"id": np.arange(rows)}), tmp_path / "rows.parquet", row_group_size=rows // 2)
    dataset = prepared("train", paceline.data.read_parquet(str(tmp_path)), split=True)
    window: dict[str, Any] = {"batch_size": 100, "local_shuffle_buffer_size": 1000, "local_shuffle_seed": 1}
    before = [DataIterator(dataset, rank, 2) for rank in range(2)]
    seen: list[int] = []
    states = []
    for shard in before:
        for batch in itertools.islice(shard.iter_batches(**window), 5):
            seen += batch["id"].tolist()
            state = shard.state_dict()
        states.append(state)
    reads = []
    read = dataset.plan.source.read

    def counted(block: int, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        reads.append(block)
        return read(block, request)

    monkeypatch.setattr(dataset.plan.source, "read", counted)
    alone = DataIterator(dataset)
    alone.load_state_dict(states)
    for batch in alone.iter_batches(**window):
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(rows))
    assert len(reads) < 10  # not one for each of about a thousand single rows


def test_the_state_of_another_rank_is_refused() -> None:
    first, second = shards(paceline.data.range(100), 2)
    begun = iter(first.iter_batches(batch_size=10))
    next(begun)
    with pytest.raises(DataError, match=r"rank 0\b.*rank 1\b"):
        second.load_state_dict(first.state_dict())


def test_between_epochs_the_ranks_states_are_alike() -> None:
    first, second = shards(paceline.data.range(100), 2)
    for _ in first.iter_batches():
        pass
    second.load_state_dict(first.state_dict())
    assert second.epoch == 1


def test_a_list_of_states_must_be_that_of_all_ranks_in_order() -> None:
    states = [shard.state_dict() for shard in shards(paceline.data.range(100), 2)]
    alone = shards(paceline.data.range(100), 1)[0]
    with pytest.raises(DataError, match=r"1 states.*rank 0 of 2"):
        alone.load_state_dict(states[:1])
    with pytest.raises(DataError, match="rank 1 of 2"):
        alone.load_state_dict(states[::-1])


@pytest.mark.parametrize("seed", [-5, np.int64(7), 2**64 - 1])
def test_numbers_of_numpy_and_any_seed_make_plain_states(seed: Any) -> None:
    shard = paceline.data.range(100).random_shuffle(seed=seed).iterator()
    options: dict[str, Any] = {"batch_size": np.int64(10), "local_shuffle_buffer_size": np.int32(20)}
    seeded: dict[str, Any] = {**options, "local_shuffle_seed": np.uint8(3)}
    for _ in shard.iter_batches(**seeded):
        state = shard.state_dict()
        break
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state)) == state
    assert sorted(row for batch in shard.iter_batches(**options) for row in batch["id"].tolist()) == [*range(100)]


def test_a_seed_too_large_for_a_stored_position_is_refused_where_it_is_given() -> None:
    batches = paceline.data.range(10).iter_batches
    with pytest.raises(ConfigError, match="local_shuffle_seed"):
        batches(batch_size=2, local_shuffle_buffer_size=4, local_shuffle_seed=2**70)


def test_a_checkpoint_that_was_in_memory_only_knows_the_place_in_the_data(tmp_path: Path) -> None:
    def loop() -> None:
        for batch in session.get_dataset_shard("train").iter_batches(batch_size=10):
            session.report({"first": int(batch["id"][0])}, checkpoint=Checkpoint.from_dict({}))
            return

    def started(checkpoint: Checkpoint | None) -> Any:
        return DataParallelTrainer(
            loop,
            datasets={"train": paceline.data.range(100)},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(
                storage_path=str(tmp_path), verbose=0, checkpoint_config=CheckpointConfig(num_to_keep=0)
            ),
            resume_from_checkpoint=checkpoint,
        ).fit()

    first = started(None)
    second = started(first.checkpoint)
    assert (first.metrics["first"], second.metrics["first"]) == (0, 10)
