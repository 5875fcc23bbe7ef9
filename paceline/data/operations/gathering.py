"""Joining the results of small batches to chunks as large as those they were cut from.

Every chunk costs some microseconds per column, here and in everything that follows; for
functions that take no longer than that themselves it would double the time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray


MOST_BYTES = 16 << 20
"""Rows may have become much larger than they were (decoded images): no more than this is held back."""


def _most_rows(batch: dict[str, NDArray[Any]], rows: int) -> int:
    size = sum(values.nbytes for values in batch.values())
    return max(1, MOST_BYTES * max(1, rows) // max(1, size))


class Gathering:
    """Takes dicts of arrays of numbers with the same names and types, `capacity` rows of them.

    They are copied at once: the function may use their memory again.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._columns: dict[str, NDArray[Any]] = {}
        self._rows = 0

    def add(self, batch: Any) -> int | None:
        """The rows that were taken; None if the batch is of another kind, or there is no room for it."""
        if type(batch) is not dict or not batch:
            return None
        rows = self._rows_of(batch)
        if rows is None or self._rows + rows > self._capacity:
            return None
        if not self._columns:
            self._capacity = min(self._capacity, _most_rows(batch, rows))
            if rows > self._capacity:
                return None
            self._columns = {name: self._room_for(values) for name, values in batch.items()}
        elif not self._fits(batch):
            return None
        end = self._rows + rows
        for name, values in batch.items():
            self._columns[name][self._rows : end] = values
        self._rows = end
        return rows

    def _room_for(self, values: NDArray[Any]) -> NDArray[Any]:
        """From Arrow's memory pool, which keeps what is given back: fresh pages would cost more than the copying."""
        shape = (self._capacity, *values.shape[1:])
        buffer = pa.allocate_buffer(math.prod(shape) * values.dtype.itemsize)
        return np.frombuffer(buffer, values.dtype).reshape(shape)

    @staticmethod
    def _rows_of(batch: dict[Any, Any]) -> int | None:
        rows: int | None = None
        for name, values in batch.items():
            if type(values) is not np.ndarray or values.dtype.kind not in "biuf" or not values.ndim:
                return None
            if rows is None:
                rows = len(values)
            if len(values) != rows or type(name) is not str:
                return None
        return rows

    def _fits(self, batch: dict[str, NDArray[Any]]) -> bool:
        if len(batch) != len(self._columns):
            return False
        for name, values in batch.items():
            column = self._columns.get(name)
            if column is None or column.dtype != values.dtype or column.shape[1:] != values.shape[1:]:
                return False
        return True

    def take(self) -> dict[str, NDArray[Any]] | None:
        """What was gathered; None if there is nothing. The memory is the caller's."""
        if not self._columns:
            return None
        gathered = {name: column[: self._rows] for name, column in self._columns.items()}
        self._columns, self._rows = {}, 0
        return gathered
