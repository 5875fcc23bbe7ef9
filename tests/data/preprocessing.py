"""Small datasets of several blocks, for the tests of preprocessors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.dataset import Dataset
from paceline.data.sources.computed import TableSource


def dataset(block_rows: int = 7, **columns: Any) -> Dataset:
    """These columns in blocks of a few rows: nothing may depend on where a block ends."""
    return Dataset(TableSource(pa.table(columns), block_rows))


def column(ds: Dataset, name: str) -> np.ndarray:
    """A column as numpy; null is NaN."""
    values = ds.to_arrow().column(name)
    assert not pa.types.is_dictionary(values.type)
    return np.array(values.to_numpy())


def skewed(rows: int = 500, missing: bool = True, dtype: Any = np.float64) -> np.ndarray:
    """Numbers of very different sizes, some of them NaN."""
    source = np.random.default_rng(3)
    numbers = np.exp(source.normal(0, 2, rows)) - 1.5
    if missing:
        numbers[source.random(rows) < 0.1] = np.nan
    return numbers.astype(dtype)
