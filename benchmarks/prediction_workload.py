"""The models that both sides predict with, the rows they predict, and how a pass over them is timed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import processes, workload
from benchmarks.tree_workload import FEATURES

if TYPE_CHECKING:
    from torch import nn

LARGER = 10
"""How many times as many rows the larger folder has."""


def mlp() -> nn.Module:
    """21,000 parameters, one number per row."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(len(FEATURES), 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    return nn.Sequential(inner, nn.Linear(128, 1), nn.Flatten(0))


def write_copies(folder: Path, source: Path) -> Path:
    """The files of `source` again and again under other names: more rows, no more disk."""
    folder.mkdir()
    for copy in range(LARGER):
        for file in source.glob("*.parquet"):
            os.link(file, folder / f"{copy}-{file.name}")
    return folder


def time_passes(predict: Callable[[Path | None], tuple[int, float]], passes: int, write: bool) -> None:
    """Time passes of `predict`, and hand out what they took and the rows and the sum of predictions they saw.

    `predict` returns rows and sum, or writes to the folder that it is given, which is read afterwards.
    """
    seconds = []
    for number in range(passes):
        target = workload.place() / f"predictions-{number}" if write else None
        started = time.perf_counter()
        seen = predict(target)
        seconds.append(time.perf_counter() - started)
        peak = processes.peak_mb()
        if target is not None:
            seen = _read_back(target)
            shutil.rmtree(target)
    workload.write_out({"seconds": seconds, "rows": seen[0], "sum": seen[1], "peak_mb": peak})


def _read_back(folder: Path) -> tuple[int, float]:
    """Rows and sum of the predictions in these files, one file at a time."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    columns = [pq.read_table(file)["predictions"] for file in sorted(folder.glob("*.parquet"))]
    return sum(map(len, columns)), sum(pc.sum(column.cast("double")).as_py() for column in columns)
