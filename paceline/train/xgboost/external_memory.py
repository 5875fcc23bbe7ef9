"""Matrices that are read from disk while XGBoost trains, for rows that do not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import xgboost

PAGE_BYTES = 64 << 20
"""Rows that XGBoost gets, compresses and stores at a time: fewer pages are read faster, and a few are in memory."""


class BatchPages(xgboost.DataIter):
    """Feeds a matrix from batches of rows; XGBoost goes through them several times while it builds it."""

    def __init__(
        self,
        batches: Callable[[], Iterator[pa.RecordBatch]],
        arguments: Callable[[pa.Table], Mapping[str, Any]],
        restart: Callable[[], None],
        cache_prefix: str,
    ) -> None:
        super().__init__(cache_prefix=cache_prefix)
        self._batches = batches
        self._arguments = arguments
        self._restart = restart
        self._pages: Iterator[pa.Table] = iter(())

    def next(self, input_data: Callable[..., None]) -> bool:
        page = next(self._pages, None)
        if page is None:
            return False
        input_data(**self._arguments(page))
        return True

    def reset(self) -> None:
        self._restart()
        self._pages = _pages(self._batches())


def _pages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches put together to tables of about one size."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.nbytes for each in waiting) >= PAGE_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)
