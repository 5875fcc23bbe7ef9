"""Cutting a stream of chunks into batches of one size, and shuffling it in windows.

Batches cross the borders of chunks and blocks: only the very last one of a stream may be short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from paceline.data.block import Chunk


def runs(chunks: Iterable[Chunk], batch_rows: int, drop_last: bool) -> Iterator[Chunk]:
    """The same rows in pieces of n x batch_rows rows, ready to be cut into batches; the last one may be short.

    Chunks are passed on as they are wherever possible: rows are copied only where a
    batch straddles two chunks.
    """
    from paceline.data.formats import concat

    kept: list[Chunk] = []
    kept_rows = 0
    for chunk in chunks:
        start = 0
        if kept_rows:
            start = min(chunk.num_rows, batch_rows - kept_rows)
            kept.append(chunk.slice(0, start))
            kept_rows += start
            if kept_rows < batch_rows:
                continue
            yield concat(kept)
            kept, kept_rows = [], 0
        whole = (chunk.num_rows - start) // batch_rows * batch_rows
        if whole:
            yield chunk if whole == chunk.num_rows else chunk.slice(start, whole)
        if start + whole < chunk.num_rows:
            rest = chunk.slice(start + whole)
            kept, kept_rows = [rest], rest.num_rows
    if kept and not drop_last:
        yield concat(kept)


def shuffled_windows(
    chunks: Iterable[Chunk], window_rows: int, order: Callable[[int, int], np.ndarray], skip: int = 0
) -> Iterator[Chunk]:
    """Rows shuffled within consecutive windows of `window_rows`.

    `order(window, rows)` is the order of the rows of one window. The first `skip` rows of the first
    window's order are left out: a stream that is taken up again begins in the middle of a window, whose
    rows are all read once more.
    """
    for window, rows in enumerate(runs(_windows(chunks, window_rows), window_rows, drop_last=False)):
        indices = order(window, rows.num_rows)
        if window == 0 and skip:
            indices = indices[skip:]
        if len(indices):
            yield rows.take(_as_array(indices))


def _windows(chunks: Iterable[Chunk], window_rows: int) -> Iterator[Chunk]:
    """Chunks of which none is longer than a window, so that `runs` gives single windows."""
    filled = 0
    for chunk in chunks:
        start = 0
        while start < chunk.num_rows:
            rows = min(chunk.num_rows - start, window_rows - filled)
            yield chunk.slice(start, rows)
            start += rows
            filled = (filled + rows) % window_rows


def _as_array(indices: np.ndarray) -> object:
    import pyarrow as pa

    return pa.array(indices)
