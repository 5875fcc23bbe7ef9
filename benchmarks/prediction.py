"""Row P1: batch prediction over Parquet files beside a loop written by hand.

Both sides have their default settings and all cores. A pass begins with loading the model and ends when the last
prediction was seen or written. The first pass of a process also imports the framework, and has a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import prediction_workload, tree_workload
from benchmarks.harness import OURS, PEERS, Bench, MeasureError, Outcome
from benchmarks.table import Row, Target, spread
from benchmarks.trees import SIZE, train_files

NAME = {"xgboost": "XGBoost", "lightgbm": "LightGBM", "torch": "torch"}
WAYS = {"count": "seen", "write": "written to Parquet"}
OURS_SCRIPT, LOOP = OURS / "batch_prediction.py", PEERS / "prediction_loop.py"
PEER = "loop over pyarrow batches"
LEAST = Target("ratio", "least", 0.9)
PASSES = 4


def batches(bench: Bench) -> Iterator[Row]:
    """Each framework with the usual rows, XGBoost also with ten times as many, and what that takes of memory."""
    rows = train_files(bench)
    models = {framework: model_files(bench, framework, rows) for framework in NAME}
    for framework, model in models.items():
        for way in WAYS:
            yield from _in_turn(bench, framework, model, rows, way, PASSES)
    more = prediction_workload.write_copies(bench.scratch / "more-tree-rows", rows)
    yield from _in_turn(bench, "xgboost", models["xgboost"], more, "write", 2)
    yield _memory(bench, models["xgboost"], rows, more)


def model_files(bench: Bench, framework: str, rows: Path) -> Path:
    folder = bench.scratch / f"{framework}-model"
    if not folder.exists():
        bench.run(OURS / "save_model.py", framework, str(rows), str(folder))
    return folder


def _in_turn(bench: Bench, framework: str, model: Path, rows: Path, way: str, passes: int) -> Iterator[Row]:
    arguments = framework, str(model), str(rows), way, str(passes)
    ours: list[Outcome] = []
    theirs: list[Outcome] = []
    for _ in range(bench.repeats(5, 2)):
        ours.append(bench.run(OURS_SCRIPT, *arguments))
        theirs.append(bench.run(LOOP, *arguments))
        _check(ours[-1], theirs[-1])
    what = f"{NAME[framework]} predictions {WAYS[way]}, {_count(ours[0])} x {len(tree_workload.FEATURES)}"
    rates = [rate for each in ours for rate in _rates(each)], [rate for each in theirs for rate in _rates(each)]
    note = f"spread {spread(rates[0])}, loop {spread(rates[1])}"
    yield Row("P1", f"{what}, rows", "1/s", rates[0], PEER, rates[1], LEAST, note=note, paired=True)
    if way == "count":
        first = [each.data["seconds"][0] for each in ours], [each.data["seconds"][0] for each in theirs]
        note = "with the import of the framework"
        yield Row("P1", f"{what}, first pass", "s", first[0], PEER, first[1], note=note, paired=True)


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
    return Row("P1", what, "MB", larger, SIZE, less, Target("ratio", "most", 1.1))
