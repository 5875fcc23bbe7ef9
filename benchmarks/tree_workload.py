"""The boosting that every side does: the same rows, the same objective, the same rounds, the same evaluation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

ROWS = 500_000
VALID_ROWS = 50_000
FILES = 8
WORKERS = 2
ROUNDS = 50
LABEL = "label"
FEATURES = tuple(f"f{i}" for i in range(30))
PARAMS: dict[str, dict[str, Any]] = {
    "xgboost": {"objective": "binary:logistic", "eval_metric": "logloss", "tree_method": "hist", "max_depth": 6},
    "lightgbm": {"objective": "binary", "metric": "binary_logloss", "num_leaves": 31, "verbosity": -1},
}
"""Binary classification by the logistic loss, which is evaluated on all training rows in each round."""
METRIC = {"xgboost": "logloss", "lightgbm": "binary_logloss"}


def features(random: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """30 columns of float32."""
    import numpy as np

    return {name: random.standard_normal(rows, dtype=np.float32) for name in FEATURES}


def table(seed: int, rows: int) -> pa.Table:
    """Features and a label that depends on five of them, one by one and together, and on chance."""
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(seed)
    columns = features(random, rows)
    f0, f1, f2, f3, f4 = (columns[name] for name in FEATURES[:5])
    score = 1.5 * f0 + f1 * f2 + np.sin(2 * f3) - 0.5 * f4**2 + 0.5
    label = random.random(rows) < 1 / (1 + np.exp(-score))
    return pa.table({**columns, LABEL: label.astype(np.int64)})


def write_files(folder: Path, rows: int, first_seed: int = 0, files: int = FILES) -> Path:
    """The same rows in each run of the benchmarks."""
    import pyarrow.parquet as pq

    folder.mkdir()
    for number in range(files):
        pq.write_table(table(first_seed + number, rows // files), folder / f"part-{number:03}.parquet")
    return folder


class RoundClock:
    """Notes when each round ended, its evaluation included."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def round_ended(self) -> None:
        self.stamps.append(time.monotonic())
