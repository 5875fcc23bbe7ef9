"""Rows that are found by the value of a key column."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import ConfigError, DataError

if TYPE_CHECKING:
    from paceline.data.dataset_base import DatasetBase

__all__ = ["RandomAccessDataset"]


class RandomAccessDataset:
    """What `Dataset.to_random_access_dataset(key)` gives. The rows are kept, and found by a table of their keys.

    Where a key occurs several times, its first row is found.
    """

    def __init__(self, dataset: DatasetBase, key: str) -> None:
        from paceline.data.operations.columns import no_such_column
        from paceline.data.store import stored

        names = dataset.plan.schema().names
        if key not in names:
            raise ConfigError(f"to_random_access_dataset: {no_such_column(key, names)}")
        self._rows = stored(dataset.plan)
        keys = self._rows.table().column(key)
        if pa.types.is_nested(keys.type) or isinstance(keys.type, pa.BaseExtensionType):
            raise DataError(f"to_random_access_dataset: column {key!r} holds {keys.type}, which cannot be a key.")
        self._key = key
        self._places: dict[Any, int] = {}
        for place, value in enumerate(keys.to_pylist()):
            self._places.setdefault(value, place)

    def get(self, key: Any) -> dict[str, Any] | None:
        """The row with that key; None if there is none."""
        return self.multiget([key])[0]

    def get_async(self, key: Any) -> Future[dict[str, Any] | None]:
        """The same as a Future, which has its result already."""
        found: Future[dict[str, Any] | None] = Future()
        found.set_result(self.get(key))
        return found

    def multiget(self, keys: Iterable[Any]) -> list[dict[str, Any] | None]:
        """The rows with these keys, in their order, and None for those that do not occur."""
        from paceline.data.formats import to_rows

        places = [self._places.get(key) for key in keys]
        present = np.array([place for place in places if place is not None], dtype=np.int64)
        rows = iter(to_rows(self._rows.take(present)) if len(present) else ())
        return [None if place is None else next(rows) for place in places]

    def stats(self) -> str:
        """How many rows there are, and how many keys."""
        return f"{self._rows.rows} rows by {self._key!r}, {len(self._places)} different keys"

    def __repr__(self) -> str:
        return f"RandomAccessDataset({self.stats()})"
