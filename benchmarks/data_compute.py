"""Rows D1 and D2: what a function of the user's and a preprocessor's fit cost beside the same work without paceline."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.data_ingest import files
from benchmarks.harness import OURS, Bench
from benchmarks.table import Row, Target, spread


def map_batches(bench: Bench) -> Iterator[Row]:
    """A pass through map_batches in turn with one through a loop over pyarrow's batches."""
    data = bench.run(OURS / "map_batches.py", str(files(bench)), str(bench.repeats(9, 3))).data
    yield Row(
        "D1", "map_batches, numpy function, one epoch", "s", data["ours"], "hand-written loop", data["theirs"],
        Target("ratio", "most", 1.2), note=f"spread {spread(data['ours'])}, loop {spread(data['theirs'])}", paired=True,
    )  # fmt: skip


def fit(bench: Bench) -> Iterator[Row]:
    """StandardScaler of 12 columns and OneHotEncoder of 4 in one pass, in turn with one query of each peer."""
    data = bench.run(OURS / "fit_chain.py", str(files(bench)), str(bench.repeats(9, 3))).data
    for peer in ("DuckDB", "Polars"):
        yield Row(
            "D2", "fit of StandardScaler + OneHotEncoder", "s", data["ours"], peer, data[peer],
            Target("ratio", "most", 1.0), note=f"spread {spread(data['ours'])}, {peer} {spread(data[peer])}",
            paired=True,
        )  # fmt: skip
