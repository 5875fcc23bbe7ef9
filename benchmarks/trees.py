"""Rows 16 and 17: boosting by two workers beside the library alone with two threads in one process.

`fit() as a whole` is the life of a fresh process, on every side: interpreter, imports, Parquet files, matrix, rounds
with their evaluation, the final model in a file, the end of all processes. `rounds` is the time from the end of the
first round to the end of the last one: as the library's own callback sees them where it runs alone (and with Ray, in
rank 0), and as the run's rows tell where paceline trains, so that reporting is in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import processes, tree_workload
from benchmarks.harness import OURS, PEERS, Bench, MeasureError, Outcome
from benchmarks.table import Row, Target, spread

NUMBER = {"xgboost": "16", "lightgbm": "17"}
NAME = {"xgboost": "XGBoost", "lightgbm": "LightGBM"}
REFERENCE = {"xgboost": ("3.6 s", "6.5 s"), "lightgbm": ("5.2 s", "6.7 s")}
RAY_REFERENCE = {"xgboost": ("5.2 s", "41.5 s"), "lightgbm": ("7.5 s", "44.7 s")}
MOST = Target("ratio", "most", 1.1)
LOSS_TOLERANCE = 0.005
"""Sketches of shards that are merged differ a little from one sketch of all rows."""


def train_files(bench: Bench) -> Path:
    folder = bench.scratch / "tree-rows"
    return folder if folder.exists() else tree_workload.write_files(folder, tree_workload.ROWS)


def valid_files(bench: Bench) -> Path:
    folder = bench.scratch / "tree-valid"
    rows, seed = tree_workload.VALID_ROWS, 1000
    return folder if folder.exists() else tree_workload.write_files(folder, rows, seed, files=1)


def xgboost(bench: Bench) -> Iterator[Row]:
    yield from _library(bench, "xgboost")


def lightgbm(bench: Bench) -> Iterator[Row]:
    yield from _library(bench, "lightgbm")


def _library(bench: Bench, library: str) -> Iterator[Row]:
    train, valid = str(train_files(bench)), str(valid_files(bench))
    alone = PEERS / f"{library}_alone.py"
    for warm_up in (OURS / "tree_fit.py", library, train), (alone, train):
        bench.run(*warm_up)
    ours, theirs = _in_turn(bench, library, [train])
    yield from _rows(library, "", ours, theirs, MOST)
    ours_valid, theirs_valid = _in_turn(bench, library, [train, valid])
    yield from _rows(library, f", {tree_workload.VALID_ROWS // 1000}k validation rows", ours_valid, theirs_valid, MOST)
    what = f"{NAME[library]}, peak memory of all processes"
    weights = _peak_mb(bench, OURS / "tree_fit.py", library, train), _peak_mb(bench, alone, train)
    yield Row(NUMBER[library], what, "MB", [weights[0]], "one process", [weights[1]], note="sum of PSS")
    if bench.has_ray:
        ray = [bench.run(PEERS / "ray_tree_fit.py", library, train)]
        yield from _rows(library, "", ours, ray, None, "Ray Train", RAY_REFERENCE[library])


def _in_turn(bench: Bench, library: str, folders: list[str]) -> tuple[list[Outcome], list[Outcome]]:
    ours, theirs = [], []
    for _ in range(bench.repeats(5, 2)):
        ours.append(bench.run(OURS / "tree_fit.py", library, *folders))
        theirs.append(bench.run(PEERS / f"{library}_alone.py", *folders))
    return ours, theirs


def _rows(
    library: str,
    variant: str,
    ours: list[Outcome],
    theirs: list[Outcome],
    target: Target | None,
    peer: str = "one process",
    reference: tuple[str, str] | None = None,
) -> Iterator[Row]:
    """Rounds alone and the whole, after a look at whether both sides have learnt the same."""
    losses, expected = ours[0].data["losses"], theirs[0].data["losses"]
    for name, loss in expected.items():
        if abs(losses[name] - loss) > LOSS_TOLERANCE * loss:
            raise MeasureError(f"{name} loss {losses[name]:.5f} here, {loss:.5f} with {peer}: not the same work")
    size = f"{NAME[library]} {tree_workload.ROWS // 1000}k x {len(tree_workload.FEATURES)}{variant}"
    references = reference or (REFERENCE[library] if not variant else ("-", "-"))
    figures = {
        f"rounds 2 to {tree_workload.ROUNDS}": ([_rounds(each) for each in ours], [_rounds(each) for each in theirs]),
        "fit() as a whole": ([each.seconds for each in ours], [each.seconds for each in theirs]),
    }
    for (what, (mine, peers)), expected_here in zip(figures.items(), references, strict=True):
        note = f"spread {spread(mine)}, {peer} {spread(peers)}"
        yield Row(
            NUMBER[library], f"{size}: {what}", "s", mine, peer, peers, target, expected_here, note,
            paired=target is not None,
        )  # fmt: skip


def _rounds(outcome: Outcome) -> float:
    stamps = outcome.data["stamps"]
    if len(stamps) != tree_workload.ROUNDS:
        raise MeasureError(f"{len(stamps)} rounds instead of {tree_workload.ROUNDS}")
    return float(stamps[-1] - stamps[0])


def _peak_mb(bench: Bench, script: Path, *arguments: str) -> float:
    """The largest sum of proportional memory over a run's processes, looked at 20 times a second."""
    peak = 0.0
    with bench.start(script, *arguments) as running:
        while running.process.poll() is None:
            peak = max(peak, processes.proportional_mb(processes.tree(running.process.pid)))
            time.sleep(0.05)
        running.finish()
    return peak
