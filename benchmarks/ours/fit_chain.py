"""Fitting StandardScaler and OneHotEncoder, in turn with DuckDB and Polars finding the same aggregates.

Arguments: the folder, and how many times.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import polars as pl

from benchmarks import workload
from benchmarks.data_workload import CATEGORIES, NUMBERS
from paceline import data
from paceline.data.preprocessors import Chain, OneHotEncoder, StandardScaler

Found = dict[str, Any]
"""Means and standard deviations, and the number of rows of each category of each column."""


def by_paceline(folder: str) -> Found:
    scaler, encoder = StandardScaler(list(NUMBERS)), OneHotEncoder(list(CATEGORIES))
    Chain(scaler, encoder).fit(data.read_parquet(folder))
    found: Found = {f"mean({name})": scaler.stats_[f"mean({name})"] for name in NUMBERS}
    found |= {f"std({name})": scaler.stats_[f"std({name})"] for name in NUMBERS}
    return found | {name: sorted(encoder.stats_[f"unique_values({name})"]) for name in CATEGORIES}


def by_duckdb(folder: str) -> Found:
    wanted = [f"avg({name}), stddev_pop({name})" for name in NUMBERS] + [f"histogram({name})" for name in CATEGORIES]
    query = f"SELECT {', '.join(wanted)} FROM read_parquet('{folder}/*.parquet')"
    row = duckdb.connect().execute(query).fetchone()
    assert row is not None
    return _found(list(row))


def by_polars(folder: str) -> Found:
    wanted: list[pl.Expr] = []
    for name in NUMBERS:
        number = pl.col(name).cast(pl.Float64)  # the others calculate with double precision too
        wanted += [number.mean().alias(f"mean {name}"), number.std(ddof=0).alias(f"std {name}")]
    wanted += [pl.col(name).value_counts().implode() for name in CATEGORIES]
    frame = pl.scan_parquet(f"{folder}/*.parquet").select(wanted).collect(engine="streaming")
    row = list(frame.row(0))
    counts = [
        {entry[name]: entry["count"] for entry in row[2 * len(NUMBERS) + number]}
        for number, name in enumerate(CATEGORIES)
    ]
    return _found([*row[: 2 * len(NUMBERS)], *counts])


def _found(row: list[Any]) -> Found:
    found: Found = {}
    for number, name in enumerate(NUMBERS):
        found[f"mean({name})"], found[f"std({name})"] = row[2 * number], row[2 * number + 1]
    counts = dict(zip(CATEGORIES, row[2 * len(NUMBERS) :], strict=True))
    return found | {name: sorted(entries) for name, entries in counts.items()}


def main(folder: str, repeats: int) -> None:
    sides: dict[str, Callable[[str], Found]] = {"ours": by_paceline, "DuckDB": by_duckdb, "Polars": by_polars}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    results: dict[str, Found] = {}
    for turn in range(repeats + 1):
        for name, fit in sides.items():
            started = time.perf_counter()
            results[name] = fit(folder)
            if turn:  # the first turn warms up
                seconds[name].append(time.perf_counter() - started)
    for name in ("DuckDB", "Polars"):
        for key, value in results["ours"].items():
            if not np.allclose(value, results[name][key], rtol=1e-6, atol=1e-9):
                raise SystemExit(f"{key} is {value}, and {results[name][key]} by {name}")
    workload.write_out(seconds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
