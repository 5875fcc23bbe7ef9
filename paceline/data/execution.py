"""Running a plan over all of its blocks: in order with reading ahead, or block by block on all cores."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from paceline.data.block import DEFAULT_CHUNK_ROWS, ReadRequest
from paceline.data.iteration.read_ahead import Piece, ReadAhead

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.plan import Plan

T = TypeVar("T")

TARGET_CHUNK_BYTES = 16 << 20
"""Large enough that Python's share of the work is small, small enough that a few of them are no burden."""
MOST_CHUNK_ROWS = 262_144
FEWEST_CHUNK_ROWS = 256


def usable_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def chunk_rows_for(plan: Plan, batch_rows: int | None = None) -> int:
    """How many rows to read at a time: about TARGET_CHUNK_BYTES, and whole batches."""
    rows = DEFAULT_CHUNK_ROWS
    for block in plan.source.blocks()[:1]:
        if block.size_bytes and block.rows:
            rows = int(TARGET_CHUNK_BYTES / (block.size_bytes / block.rows))
    rows = min(max(rows, FEWEST_CHUNK_ROWS), MOST_CHUNK_ROWS)
    if batch_rows is not None and batch_rows <= rows:
        rows -= rows % batch_rows
    return rows


def map_blocks(
    plan: Plan, work: Callable[[int, Iterator[Chunk]], T], *, columns: tuple[str, ...] | None = None
) -> Iterator[T]:
    """`work(block, chunks)` for every block; results come in the order of blocks.

    Several blocks at a time where no code of the user's runs: Arrow and numpy let other threads
    work meanwhile. At most two blocks per thread are under way.
    """
    request = ReadRequest(columns=columns, chunk_rows=chunk_rows_for(plan))
    count = len(plan.blocks())
    threads = min(usable_cores(), count) if plan.native else 1

    def run(block: int) -> T:
        return work(block, plan.read(block, request))

    if threads <= 1:
        for block in range(count):
            yield run(block)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="paceline-data")
    try:
        under_way: deque[Future[T]] = deque()
        for block in range(count):
            under_way.append(pool.submit(run, block))
            if len(under_way) >= 2 * threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def chunks_of(
    plan: Plan, *, columns: tuple[str, ...] | None = None, chunk_rows: int = DEFAULT_CHUNK_ROWS
) -> Iterator[Chunk]:
    """All chunks of a plan in order, read ahead by threads."""
    pieces = [Piece(block) for block in range(len(plan.blocks()))]
    request = ReadRequest(columns=columns, chunk_rows=chunk_rows)
    threads = min(usable_cores(), max(1, len(pieces))) if plan.native else 1
    reader = ReadAhead(plan, pieces, request, threads=threads, depth=2)
    try:
        yield from reader
    finally:
        reader.close()


def count_rows(plan: Plan) -> tuple[int, ...]:
    """Rows of every block, by running the plan once; what is counted is not kept."""

    def count(_: int, chunks: Iterator[Chunk]) -> int:
        return sum(chunk.num_rows for chunk in chunks)

    return tuple(map_blocks(plan, count))
