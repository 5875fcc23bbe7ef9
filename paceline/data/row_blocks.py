"""Blocks of rows that can be reached by their number: how large they are, and which rows one has."""

from __future__ import annotations

from paceline.data.block import Block, ReadRequest

FEWEST_BLOCK_ROWS = 1024
MOST_BLOCK_ROWS = 65_536


def default_block_rows(rows: int) -> int:
    """About 16 blocks, so that a shuffle of blocks means something; none so small that batches become tiny in it."""
    return max(FEWEST_BLOCK_ROWS, min(MOST_BLOCK_ROWS, -(-rows // 16)))


def row_blocks(
    name: str, rows: int, block_rows: int, row_bytes: float | None = None, unit: str = "rows"
) -> list[Block]:
    """Blocks of `block_rows` rows, the last one shorter. Messages count rows from the beginning of a block."""
    blocks = []
    for number, start in enumerate(range(0, rows, block_rows)):
        stop = min(rows, start + block_rows)
        part = f", block {number} ({unit} {start} to {stop - 1})" if rows > block_rows else ""
        size = None if row_bytes is None else int((stop - start) * row_bytes)
        blocks.append(Block(f"{name}{part}", stop - start, size))
    return blocks


def rows_of_block(block: int, request: ReadRequest, rows: int, block_rows: int) -> range:
    """Which rows of a source with such blocks a request is about."""
    begin = block * block_rows
    end = min(rows, begin + block_rows)
    start = min(end, begin + request.start)
    return range(start, end if request.stop is None else max(start, min(end, begin + request.stop)))
