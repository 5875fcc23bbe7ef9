"""What can go wrong between datasets and workers, beyond the ordinary: interrupted shuffles, states of others, ends."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline.data
from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, session
from paceline.air.data_config import DataConfig, DatasetConfig
from paceline.air.errors import ConfigError, DataError
from paceline.data.block import Block, ReadRequest, Source
from paceline.data.ingest.epoch_order import NEAR_ROWS, EpochOrder
from paceline.data.ingest.prepare import prepared
from paceline.data.iteration import read_ahead
from paceline.data.iteration.read_ahead import Piece, ReadAhead
from paceline.data.iterator import DataIterator
from paceline.data.sources.memory import RangeSource
from paceline.train.data_parallel_trainer import DataParallelTrainer


def shards(rows: int, workers: int) -> list[DataIterator]:
    dataset = prepared("train", paceline.data.range(rows), split=True)
    return [DataIterator(dataset, rank, workers) for rank in range(workers)]


# -- what is left of an interrupted local shuffle -----------------------------------------------


def test_a_position_in_a_dataset_that_was_made_with_another_seed_is_not_taken_over() -> None:
    def train_part(seed: int) -> DataIterator:
        train, _ = paceline.data.range(100).train_test_split(0.2, shuffle=True, seed=seed)
        return train.iterator()

    one = train_part(1)
    next(one.iter_batches(batch_size=10))
    state = one.state_dict()
    train_part(1).load_state_dict(state)
    with pytest.raises(DataError, match="with another seed"):
        train_part(2).load_state_dict(state)
    sampled = paceline.data.range(100).random_sample(0.5, seed=1).materialize().iterator()
    assert sampled.state_dict()["mark"] != 0


def test_single_rows_near_each_other_are_read_together() -> None:
    order = EpochOrder((5000, 5000), "none", 0, 0)
    ranges = ((1, 2), (4, 5), (9, 12), (4990, 5003), (9000, 9001))
    pieces = order.pieces(ranges)
    assert pieces == [
        Piece(0, 1, 12, kept=((1, 2), (4, 5), (9, 12))),
        Piece(0, 4990, 5000),
        Piece(1, 0, 3),
        Piece(1, 4000, 4001),
    ]
    assert NEAR_ROWS < 4990 - 12
    rows = [row for numbers in order.row_numbers(ranges, 100) for row in numbers.tolist()]
    assert rows == [row for start, stop in ranges for row in range(start, stop)]


@pytest.mark.parametrize("chunk_rows", [1, 3, 7, 1000])
def test_of_rows_that_are_read_together_only_the_wanted_ones_come_out(chunk_rows: int) -> None:
    source = RangeSource(64, block_rows=4)
    (block,) = [Piece(0, 1, 4, kept=((1, 2), (3, 4)))]
    reader = ReadAhead(source, [block, Piece(1)], ReadRequest(chunk_rows=chunk_rows), threads=1)
    ids = [number for chunk in reader for number in chunk.column("id").to_pylist()]
    assert ids == [1, 3, 4, 5, 6, 7]


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


# -- states ---------------------------------------------------------------------------------------


def test_the_state_of_another_rank_is_refused() -> None:
    first, second = shards(100, 2)
    begun = iter(first.iter_batches(batch_size=10))
    next(begun)
    with pytest.raises(DataError, match="that of rank 0, and this is rank 1"):
        second.load_state_dict(first.state_dict())


def test_between_epochs_the_ranks_states_are_alike() -> None:
    first, second = shards(100, 2)
    for _ in first.iter_batches():
        pass
    second.load_state_dict(first.state_dict())
    assert second.epoch == 1


def test_a_list_of_states_must_be_that_of_all_ranks_in_order() -> None:
    states = [shard.state_dict() for shard in shards(100, 2)]
    alone = shards(100, 1)[0]
    with pytest.raises(DataError, match="of 1 states, number 0 is that of rank 0 of 2"):
        alone.load_state_dict(states[:1])
    with pytest.raises(DataError, match="number 0 is that of rank 1 of 2"):
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


def test_a_config_takes_a_seed_of_numpy() -> None:
    assert type(DataConfig(seed=np.int64(3)).seed) is int  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="seed is -1"):
        DatasetConfig(seed=-1)


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


def test_rows_of_a_shuffled_union_are_counted_once_for_all_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.data import execution

    (tmp_path / "more.csv").write_text("id\n" + "\n".join(str(number) for number in range(100, 130)) + "\n")
    both = paceline.data.range(100).random_shuffle(seed=1).union(paceline.data.read_csv(str(tmp_path)))
    shard = DataIterator(prepared("train", both))

    def refused(plan: Any) -> Any:
        raise AssertionError(f"counted again: {plan.describe()}")

    monkeypatch.setattr(execution, "count_rows", refused)
    for _ in range(3):
        assert sorted(row["id"] for row in shard.iter_rows()) == list(range(130))


def test_repeat_says_how_many_epochs_there_are() -> None:
    passes = [len(epoch.take_all()) for epoch in paceline.data.range(10).repeat(3).iter_epochs(1)]
    assert passes == [10]
    counts = []
    for epoch in paceline.data.range(10).repeat(3).iter_epochs():
        counts.append(sum(len(batch["id"]) for batch in epoch.iter_batches(batch_size=4)))
    assert counts == [10, 10, 10]


def test_processes_of_a_data_loader_are_refused_because_each_would_give_all_rows() -> None:
    torch = pytest.importorskip("torch")
    rows = paceline.data.range(20).to_torch(batch_size=5)
    in_this_process = torch.utils.data.DataLoader(rows, batch_size=None)
    assert sum(len(features) for features, _ in in_this_process) == 20
    with pytest.raises(DataError, match="num_workers=0"):
        list(torch.utils.data.DataLoader(rows, batch_size=None, num_workers=1))


def test_a_function_that_keeps_other_rows_each_time_is_told_of() -> None:
    calls = itertools.count()
    fewer = paceline.data.range(1000).filter(lambda row: next(calls) < 1500)  # 1000 when counted, then 500
    shard = fewer.iterator()
    with pytest.raises(DataError, match=r"range\(1000\) ended after .* materialize\(\)"):
        for _ in shard.iter_batches():
            pass


# -- the end of a pass ----------------------------------------------------------------------------


class Stuck(Source):
    """Blocks that take until they are let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun = threading.Semaphore(0)

    def blocks(self) -> list[Block]:
        return [Block(f"block {number}") for number in range(8)]

    def schema(self) -> pa.Schema:
        return pa.schema([("id", pa.int64())])

    def read(self, block: int, request: ReadRequest) -> Iterator[pa.RecordBatch]:
        if block:
            self.begun.release()
            self.let_go.wait()
        yield pa.RecordBatch.from_pydict({"id": [block]}, schema=self.schema())


def test_leaving_a_pass_waits_once_for_all_stuck_readers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Stuck()
    waits: list[float] = []
    join = threading.Thread.join

    def wait_in_vain(thread: threading.Thread, timeout: float | None = None) -> None:
        waits.append(timeout or 0.0)

    reader = ReadAhead(source, [Piece(number) for number in range(8)], ReadRequest(), threads=4)
    chunks = iter(reader)
    next(chunks)
    for _ in range(3):
        assert source.begun.acquire(timeout=60)
    readers = list(reader._readers)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", wait_in_vain)
        patched.setattr(time, "monotonic", lambda: sum(waits))
        reader.close()
    source.let_go.set()
    for thread in readers:
        join(thread, 60)
    assert len(waits) == 4
    assert sum(waits) <= read_ahead.CLOSING_WAIT_S


# -- handing over ---------------------------------------------------------------------------------


def test_more_tables_than_one_message_carries_reach_the_workers(tmp_path: Path) -> None:
    def loop() -> None:
        total = sum(int(batch["id"].sum()) for batch in session.get_dataset_shard("train").iter_batches())
        others = [session.get_dataset_shard(f"other {number}").count() for number in range(20)]
        session.report({"total": total, "others": others})

    numbers = np.arange(10_000)
    tables = [pa.table({"id": numbers + number}) for number in range(20)]
    first, *rest = [paceline.data.from_arrow(table) for table in tables]
    others = {f"other {number}": paceline.data.from_arrow(table) for number, table in enumerate(tables)}
    result = DataParallelTrainer(
        loop,
        datasets={"train": first.union(*rest), **others},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    totals = result.rank_dataframe["total"].tolist()
    assert sum(totals) == sum(int(table["id"].to_numpy().sum()) for table in tables)
    assert result.metrics["others"] == [10_000] * 20


def test_an_error_of_a_function_that_makes_a_dataset_names_the_dataset(tmp_path: Path) -> None:
    def no_such_table() -> Any:
        raise KeyError("sales")

    trainer = DataParallelTrainer(
        lambda: None,
        datasets={"train": no_such_table},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    with pytest.raises(KeyError) as told:
        trainer.fit()
    assert "datasets['train']" in told.value.__notes__[0]


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
