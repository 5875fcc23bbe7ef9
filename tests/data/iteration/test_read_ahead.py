"""Reading ahead: in order, in bounded memory however slow the consumer is, errors where they belong, no thread left."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

import paceline.data
from paceline.air.errors import DataError
from paceline.data import execution
from paceline.data.block import Block, ReadRequest, Source
from paceline.data.execution import Piece, ReadAhead
from paceline.data.ingest.prepare import prepared
from paceline.data.iterator import DataIterator
from paceline.data.plan import Plan
from paceline.data.sources.computed import RangeSource
from paceline.testing.processes import wait_for


class Counting(Source):
    """Blocks of `sizes` chunks of one row each; knows how many it has given out. Raises at block `broken`."""

    native = True

    def __init__(self, sizes: Sequence[int], broken: int | None = None) -> None:
        self.sizes = sizes
        self.broken = broken
        self.given = 0
        self._lock = threading.Lock()

    def blocks(self) -> Sequence[Block]:
        return [Block(f"block {number}", size) for number, size in enumerate(self.sizes)]

    def schema(self) -> pa.Schema:
        return pa.schema([("block", pa.int64()), ("row", pa.int64())])

    def read(self, block: int, request: ReadRequest) -> Iterator[Any]:
        for row in range(request.start, self.sizes[block] if request.stop is None else request.stop):
            if block == self.broken and row == 1:
                raise DataError(f"block {block} is broken")
            with self._lock:
                self.given += 1
            yield pa.record_batch({"block": [block], "row": [row]})


class Waiting(threading.Condition):
    """Knows how many threads wait and have not been woken."""

    threads = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.threads += 1
        return super().wait(timeout)

    def notify_all(self) -> None:
        self.threads = 0
        super().notify_all()


def reader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("paceline-data")]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    wait_for(lambda: not reader_threads(), "the reading threads to end")


def whole(source: Source) -> list[Piece]:
    return [Piece(block) for block in range(len(source.blocks()))]


def drain(items: Iterable[Any], into: list[Any]) -> None:
    for item in items:
        into.append(item)


def places(chunks: Iterator[Any]) -> list[tuple[int, int]]:
    return [(chunk["block"][0].as_py(), chunk["row"][0].as_py()) for chunk in chunks]


@pytest.mark.parametrize(("threads", "depth"), [(0, 1), (1, 1), (1, 5), (2, 1), (3, 2), (8, 4)])
def test_chunks_come_in_order_whatever_the_threads(threads: int, depth: int) -> None:
    rng = random.Random(threads)
    source = Counting([rng.randrange(6) for _ in range(40)])
    expected = [(block, row) for block, size in enumerate(source.sizes) for row in range(size)]
    reader = ReadAhead(source, whole(source), ReadRequest(), threads=threads, depth=depth)
    assert places(iter(reader)) == expected


def test_pieces_are_parts_of_blocks() -> None:
    source = Counting([5, 5])
    pieces = [Piece(1, 3), Piece(0, 1, 2), Piece(1, 0, 1)]
    reader = ReadAhead(source, pieces, ReadRequest(), threads=2)
    assert places(iter(reader)) == [(1, 3), (1, 4), (0, 1), (1, 0)]


@pytest.mark.parametrize(("threads", "depth"), [(1, 1), (1, 4), (2, 1), (3, 2)])
@pytest.mark.parametrize("chunks_per_block", [1, 2, 4, 30])
def test_a_slow_consumer_bounds_what_is_read(
    threads: int, depth: int, chunks_per_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: After each chunk the consumer waits until no thread reads any more: nobody could be slower."""
    source = Counting([chunks_per_block] * 6)
    waiting = Waiting()
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Condition", lambda: waiting)
        reader = ReadAhead(source, whole(source), ReadRequest(), threads=threads, depth=depth)
    most, taken = 0, 0
    for _ in reader:
        taken += 1
        wait_for(lambda: waiting.threads >= len(reader_threads()), "the readers to wait")
        most = max(most, source.given - taken)
    assert taken == 6 * chunks_per_block
    assert most <= threads * (depth + 1) + depth
    if chunks_per_block > depth + 1:
        assert most >= threads * (depth + 1) - 1, "nothing was read ahead"


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_error_comes_where_its_chunk_would_have_come(threads: int) -> None:
    """G7."""
    source = Counting([3, 3, 3, 3], broken=2)
    reader = ReadAhead(source, whole(source), ReadRequest(), threads=threads, depth=2)
    seen: list[int] = []
    with pytest.raises(DataError, match="block 2 is broken") as caught:
        drain((chunk["block"][0].as_py() for chunk in reader), seen)
    assert seen == [0, 0, 0, 1, 1, 1, 2]
    assert any(entry.name == "read" for entry in caught.traceback), "the reader's own stack is lost"


def test_threads_end_when_the_consumer_leaves() -> None:
    source = Counting([100] * 4)
    chunks = iter(ReadAhead(source, whole(source), ReadRequest(), threads=2))
    next(chunks)
    assert reader_threads()
    chunks.close()  # type: ignore[attr-defined]
    wait_for(lambda: not reader_threads(), "the readers to end")
    assert source.given < 20


def test_a_dataset_that_is_left_early_reads_no_more() -> None:
    source = Counting([1000] * 4)
    for _ in paceline.data.Dataset(Plan(source)).iter_batches(batch_size=1):
        break
    wait_for(lambda: not reader_threads(), "the readers to end")
    assert source.given < 400


def test_prefetch_zero_reads_nothing_before_it_is_asked_for() -> None:
    source = Counting([10])
    batches = iter(paceline.data.Dataset(Plan(source)).iter_batches(batch_size=1, prefetch_batches=0))
    next(batches)
    assert source.given == 1
    assert not reader_threads()


def test_a_shard_leaves_no_thread_behind() -> None:
    shard = paceline.data.range(5000).iterator()
    for batch in shard.iter_torch_batches(batch_size=64, collate_fn=lambda batch: batch):
        assert len(batch["id"]) == 64
        break
    next(iter(shard.iter_batches(batch_size=10)))
    shard.take(3)
    assert len(shard.to_pandas()) == 5000


def test_a_users_function_is_never_called_by_two_threads() -> None:
    callers = set()

    def note(row: dict[str, Any]) -> dict[str, Any]:
        callers.add(threading.current_thread())
        return row

    dataset = paceline.data.range(4000).map(note)
    shard = DataIterator(prepared("train", dataset), threads=4)
    for read in (shard.take_all, shard.to_pandas, lambda: list(shard.iter_batches()), dataset.to_pandas):
        callers.clear()
        assert len(read()) > 0
        assert len(callers) == 1, read


@pytest.mark.parametrize("chunk_rows", [1, 3, 7, 1000])
def test_of_rows_that_are_read_together_only_the_wanted_ones_come_out(chunk_rows: int) -> None:
    source = RangeSource(64, block_rows=4)
    (block,) = [Piece(0, 1, 4, kept=((1, 2), (3, 4)))]
    reader = ReadAhead(source, [block, Piece(1)], ReadRequest(chunk_rows=chunk_rows), threads=1)
    ids = [number for chunk in reader for number in chunk.column("id").to_pylist()]
    assert ids == [1, 3, 4, 5, 6, 7]


def test_a_function_that_keeps_other_rows_each_time_is_told_of() -> None:
    calls = itertools.count()
    fewer = paceline.data.range(1000).filter(lambda row: next(calls) < 1500)  # 1000 when counted, then 500
    shard = fewer.iterator()
    with pytest.raises(DataError, match=r"range\(1000\).*materialize\(\)"):
        for _ in shard.iter_batches():
            pass


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
    readers = reader_threads()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", wait_in_vain)
        patched.setattr(time, "monotonic", lambda: sum(waits))
        reader.close()
    source.let_go.set()
    for thread in readers:
        join(thread, 60)
    assert len(waits) == 4
    assert sum(waits) <= execution.CLOSING_WAIT_S
