"""Row P1: batch prediction over Parquet files beside a loop written by hand.

Both sides have their default settings and all cores. A pass begins with loading the model and ends when the last
prediction was seen or written. The first pass of a process, which imports the framework, is not counted on either side.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import prediction_workload, tree_workload
from benchmarks.harness import OURS, PEERS, Bench, MeasureError, Outcome
from benchmarks.table import Row, Target, spread
from benchmarks.trees import train_files

NAME = {"xgboost": "XGBoost", "lightgbm": "LightGBM", "torch": "torch"}
WAYS = {"count": "seen", "write": "written to Parquet"}
OURS_SCRIPT, LOOP = OURS / "batch_prediction.py", PEERS / "prediction_loop.py"
LEAST = Target("ratio", "least", 0.9)
PASSES = 4


def batches(bench: Bench) -> Iterator[Row]:
    """Each framework with the usual rows, XGBoost also with ten times as many, and what that takes of memory."""
    rows = train_files(bench)
    models = {framework: model_files(bench, framework, rows) for framework in NAME}
    for framework, model in models.items():
        for way in WAYS:
            yield _in_turn(bench, framework, model, rows, way, PASSES)
    more = prediction_workload.write_copies(bench.scratch / "more-tree-rows", rows)
    yield _in_turn(bench, "xgboost", models["xgboost"], more, "write", 2)
    yield _memory(bench, models["xgboost"], rows, more)


def model_files(bench: Bench, framework: str, rows: Path) -> Path:
    folder = bench.scratch / f"{framework}-model"
    if not folder.exists():
        bench.run(OURS / "save_model.py", framework, str(rows), str(folder))
    return folder


def _in_turn(bench: Bench, framework: str, model: Path, rows: Path, way: str, passes: int) -> Row:
    arguments = framework, str(model), str(rows), way, str(passes)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(bench.repeats(5, 2)):
        here, there = bench.run(OURS_SCRIPT, *arguments), bench.run(LOOP, *arguments)
        _check(here, there)
        ours += _rates(here)
        theirs += _rates(there)
    what = f"{NAME[framework]} predictions {WAYS[way]}, {_count(here)} x {len(tree_workload.FEATURES)}, rows"
    note = f"spread {spread(ours)}, loop {spread(theirs)}"
    return Row("P1", what, "1/s", ours, "loop over pyarrow batches", theirs, LEAST, note=note)


def _check(here: Outcome, there: Outcome) -> None:
    if here.data["rows"] != there.data["rows"]:
        raise MeasureError(f"{here.data['rows']} predictions instead of {there.data['rows']}")
    if abs(here.data["sum"] - there.data["sum"]) > 1e-4 * abs(there.data["sum"]):
        raise MeasureError(f"the predictions differ: their sums are {here.data['sum']} and {there.data['sum']}")


def _rates(outcome: Outcome) -> list[float]:
    return [outcome.data["rows"] / seconds for seconds in outcome.data["seconds"][1:]]


def _count(outcome: Outcome) -> str:
    rows = outcome.data["rows"]
    return f"{rows / 10**6:g}M" if rows >= 10**6 else f"{rows // 1000}k"


def _memory(bench: Bench, model: Path, rows: Path, more: Path) -> Row:
    """The largest resident set of the process that reads, predicts and writes, in its whole life."""

    def peaks(folder: Path) -> list[float]:
        arguments = "xgboost", str(model), str(folder), "write", "1"
        return [bench.run(OURS_SCRIPT, *arguments).data["peak_mb"] for _ in range(bench.repeats(3))]

    less, larger = peaks(rows), peaks(more)
    what = f"XGBoost predictions to Parquet, peak memory, {prediction_workload.LARGER} x as many rows"
    return Row("P1", what, "MB", larger, f"{tree_workload.ROWS // 1000}k rows", less, Target("ratio", "most", 1.1))
