"""map_batches with a numpy function, in turn with a loop written by hand. Arguments: the folder, and how many times."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks import data_workload, workload
from benchmarks.data_workload import BATCH_ROWS
from paceline import data


def add_norm(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All columns and one more: little work per row, so that what is around it shows."""
    return {**batch, "norm": np.sqrt(batch["f0"] ** 2 + batch["f1"] ** 2 + batch["f2"] ** 2)}


def by_paceline(folder: str) -> Iterator[dict[str, Any]]:
    mapped = data.read_parquet(folder).map_batches(add_norm, batch_size=BATCH_ROWS, batch_format="numpy")
    yield from mapped.iter_batches(batch_size=BATCH_ROWS, batch_format="numpy")


def by_hand(folder: str) -> Iterator[dict[str, Any]]:
    for file in data_workload.files_in(folder):
        for batch in pq.ParquetFile(file).iter_batches(batch_size=BATCH_ROWS):
            columns = zip(batch.schema.names, batch.columns, strict=True)
            yield add_norm({name: column.to_numpy() for name, column in columns})


def seconds_of(batches: Callable[[str], Iterator[dict[str, Any]]], folder: str) -> tuple[float, float]:
    """The time of a pass, and a sum over all rows that must be the same on both sides."""
    started = time.perf_counter()
    total = sum(float(batch["norm"].sum(dtype=np.float64)) for batch in batches(folder))
    return time.perf_counter() - started, total


def main(folder: str, repeats: int) -> None:
    figures: dict[str, list[float]] = {"ours": [], "theirs": []}
    for turn in range(repeats + 1):
        ours, total = seconds_of(by_paceline, folder)
        theirs, expected = seconds_of(by_hand, folder)
        if not np.isclose(total, expected, rtol=1e-9):
            raise SystemExit(f"the results differ: {total} and {expected}")
        if turn:  # the first turn warms up
            figures["ours"].append(ours)
            figures["theirs"].append(theirs)
    workload.write_out(figures)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
