"""Preprocessors that put several columns in the place of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from paceline.air.errors import DataError


def expanded(
    chunk: pa.RecordBatch, removed: Sequence[str], names: Sequence[str], values: Iterable[pa.Array], what: str
) -> pa.RecordBatch:
    """The chunk without some columns and with others after its last one."""
    kept = [name for name in chunk.schema.names if name not in removed]
    for name in set(kept).intersection(names):
        raise DataError(
            f"{what} makes a column {name!r}, but there is one of this name already. Rename one of the two columns."
        )
    return pa.record_batch([*(chunk.column(name) for name in kept), *values], [*kept, *names])


def check_unique(names: Sequence[str], what: str) -> None:
    """Refuse columns that would have the same name."""
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise DataError(
            f"{what} would make {times} columns named {name!r}. Rename a column before it, to tell them apart."
        )


def counts_per_row(rows: int, row: np.ndarray, place: np.ndarray, places: int) -> list[pa.Array]:
    """How often each of so many places occurs in each of so many rows: one column per place.

    `row` and `place` have one entry for each occurrence.
    """
    table = np.bincount(place * rows + row, minlength=places * rows).reshape(places, rows)
    return [pa.array(column) for column in table]
