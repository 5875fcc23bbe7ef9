"""Reading ahead: in order, in bounded memory however slow the consumer is, errors where they belong, no thread left."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import paceline.data
from paceline.air.errors import DataError
from paceline.data.block import Block, ReadRequest, Source
from paceline.data.ingest.prepare import prepared
from paceline.data.iteration.background import Background
from paceline.data.iteration.read_ahead import Piece, ReadAhead
from paceline.data.iterator import DataIterator
from paceline.data.plan import Plan
from paceline.testing.chaos import wait_for


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
def test_g7_a_slow_consumer_bounds_what_is_read(threads: int, depth: int, chunks_per_block: int) -> None:
    """After each chunk the consumer waits until no thread reads any more: nobody could be slower."""
    source = Counting([chunks_per_block] * 12)
    reader = ReadAhead(source, whole(source), ReadRequest(), threads=threads, depth=depth)
    most, taken = 0, 0
    for _ in reader:
        taken += 1
        wait_for(lambda: _all_wait(reader, threads), "the readers to wait")
        most = max(most, source.given - taken)
    assert taken == 12 * chunks_per_block
    assert most <= threads * (depth + 1) + depth
    if chunks_per_block > depth + 1:
        assert most >= threads * (depth + 1) - 1, "nothing was read ahead"


def _all_wait(reader: ReadAhead, threads: int) -> bool:
    """Whether every live reading thread is blocked on the reader's condition."""
    with reader._changed:
        waiting = len(reader._changed._waiters)  # type: ignore[attr-defined]
    return waiting >= len(reader_threads())


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_g7_an_error_comes_where_its_chunk_would_have_come(threads: int) -> None:
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


def test_background_makes_no_more_than_its_depth_ahead() -> None:
    made = 0

    def items() -> Iterator[int]:
        nonlocal made
        for number in range(20):
            made += 1
            yield number

    background = Background(items(), depth=3)
    seen = []
    for number in background:
        seen.append(number)
        wait_for(lambda: background._complete or len(background._made) == 3, "the items ahead")
        assert made <= number + 1 + 3 + 1
    assert seen == list(range(20))


def test_background_raises_where_the_item_would_have_come() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("no second one")

    seen: list[int] = []
    with pytest.raises(ValueError, match="no second one"):
        drain(Background(items(), depth=5), seen)
    assert seen == [1]


def test_an_error_of_collate_fn_reaches_the_loop_and_ends_the_threads() -> None:
    def collate(batch: dict[str, np.ndarray]) -> Any:
        if batch["id"][0] >= 20:
            raise RuntimeError("cannot collate")
        return int(batch["id"][0])

    seen: list[int] = []
    with pytest.raises(RuntimeError, match="cannot collate"):
        drain(paceline.data.range(100).iter_torch_batches(batch_size=10, collate_fn=collate), seen)
    assert seen == [0, 10]


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
