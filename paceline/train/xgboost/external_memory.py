"""Matrices that are read from disk while XGBoost trains, for rows that do not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import xgboost

from paceline.data.column_arrays import contiguous

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
        query_column: str | None,
    ) -> None:
        super().__init__(cache_prefix=cache_prefix)
        self._batches = batches
        self._arguments = arguments
        self._restart = restart
        self._query_column = query_column
        self._pages: Iterator[pa.Table] = iter(())

    def next(self, input_data: Callable[..., None]) -> bool:
        page = next(self._pages, None)
        if page is None:
            return False
        input_data(**self._arguments(page))
        return True

    def reset(self) -> None:
        self._restart()
        self._pages = _pages(self._batches(), self._query_column)


def _pages(batches: Iterator[pa.RecordBatch], query_column: str | None) -> Iterator[pa.Table]:
    """Batches put together to tables of about one size.

    XGBoost ends a query where a page ends, so the rows of the last query of a page wait for those that follow.
    """
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.nbytes for each in waiting) >= PAGE_BYTES:
            page = pa.Table.from_batches(waiting)
            whole = page.num_rows if query_column is None else _start_of_last_query(page.column(query_column))
            if whole:
                yield page.slice(0, whole)
                waiting = page.slice(whole).to_batches()
    if waiting:
        yield pa.Table.from_batches(waiting)


def _start_of_last_query(column: pa.ChunkedArray) -> int:
    values = contiguous(column)
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    ends = np.flatnonzero(np.diff(encoded.indices.to_numpy(zero_copy_only=False)))
    return int(ends[-1]) + 1 if len(ends) else 0
