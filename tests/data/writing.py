"""Datasets to write, and the files that come of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.dataset import Dataset
from paceline.data.sources.computed import TableSource


def table(columns: dict[str, Any], block_rows: int = 4) -> Dataset:
    return Dataset(TableSource(pa.table(columns), block_rows))


def mixed(rows: int = 10) -> Dataset:
    return table(
        {
            "id": np.arange(rows),
            "x": [None if i == 3 else i / 3 for i in range(rows)],
            "text": [f'line {i}, "quoted"' for i in range(rows)],
            "flag": [i % 2 == 0 for i in range(rows)],
        }
    )


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())
