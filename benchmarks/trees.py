"""Rows 16 and 17: boosting by two workers beside the library alone with two threads in one process.

`fit() as a whole` is the life of a fresh process, on every side: interpreter, imports, Parquet files, matrix, rounds
with their evaluation, the final model in a file, the end of all processes. `training` is the part of it from before the
rows are read until the last round has ended, without imports and the start of processes, and `rounds` is the time from
the end of the first round to the end of the last one. A callback of the library tells them where it is used by hand;
with paceline and Ray the rows of the run do, so that reporting is in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import processes, tree_workload
from benchmarks.harness import OURS, PEERS, Bench, MeasureError, Outcome
from benchmarks.table import Row, Target, spread

NUMBER = {"xgboost": "16", "lightgbm": "17"}
NAME = {"xgboost": "XGBoost", "lightgbm": "LightGBM"}
SIZE = f"{tree_workload.ROWS // 1000}k x {len(tree_workload.FEATURES)}"
ROUNDS, TRAINING, WHOLE = f"rounds 2 to {tree_workload.ROUNDS}", "training", "fit() as a whole"
REFERENCE = {
    "xgboost": {TRAINING: "3.6 s", WHOLE: "6.5 s"},
    "lightgbm": {TRAINING: "5.2 s", WHOLE: "6.7 s"},
}
RAY_REFERENCE = {"xgboost": {ROUNDS: "5.2 s", WHOLE: "41.5 s"}, "lightgbm": {ROUNDS: "7.5 s", WHOLE: "44.7 s"}}
NO_REFERENCE: dict[str, str] = {}
OURS_SCRIPT = OURS / "tree_fit.py"
ALONE = "one process, 2 threads"
PAIR = "2 processes by hand"
"""What the library's own way of training together costs, without paceline."""
MOST = Target("ratio", "most", 1.1)
LOSS_TOLERANCE = 0.02
"""Bins found on shards differ a little from those found on all rows, and LightGBM knows the loss of its shard only."""


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
    number, what = NUMBER[library], f"{NAME[library]} {SIZE}"
    train, valid = str(train_files(bench)), str(valid_files(bench))
    alone, pair = PEERS / f"{library}_alone.py", PEERS / f"{library}_pair.py"
    bench.run(OURS_SCRIPT, library, train)  # reads the files of the library once, for all sides
    ours, theirs, by_hand = _in_turn(bench, [OURS_SCRIPT, library, train], [alone, train], [pair, train])
    yield from _rows(number, what, ours, ALONE, theirs, REFERENCE[library], MOST)
    yield from _rows(number, what, ours, PAIR, by_hand)
    with_valid = f"{what} and {tree_workload.VALID_ROWS // 1000}k validation rows"
    ours_valid, theirs_valid = _in_turn(bench, [OURS_SCRIPT, library, train, valid], [alone, train, valid])
    yield from _rows(number, with_valid, ours_valid, ALONE, theirs_valid, target=MOST)
    weights = [_peak_mb(bench, OURS_SCRIPT, library, train)], [_peak_mb(bench, alone, train)]
    yield Row(number, f"{what}: peak memory", "MB", weights[0], ALONE, weights[1], note="sum of PSS of all processes")
    if bench.has_ray:
        ray = [bench.run(PEERS / "ray_tree_fit.py", library, train)]
        yield from _rows(number, what, ours, "Ray Train", ray, RAY_REFERENCE[library])


def _in_turn(bench: Bench, *sides: list[Any]) -> list[list[Outcome]]:
    """The outcomes of each side; a side is a script and its arguments."""
    outcomes: list[list[Outcome]] = [[] for _ in sides]
    for _ in range(bench.repeats(5, 2)):
        for side, ended in zip(sides, outcomes, strict=True):
            ended.append(bench.run(*side))
    return outcomes


def _rows(
    number: str,
    what: str,
    ours: list[Outcome],
    peer: str,
    theirs: list[Outcome],
    references: dict[str, str] = NO_REFERENCE,
    target: Target | None = None,
) -> Iterator[Row]:
    """The rounds, the training and the whole, after a look at whether both sides have learnt the same."""
    losses, expected = ours[0].data["losses"], theirs[0].data["losses"]
    for name, loss in expected.items():
        if abs(losses[name] - loss) > LOSS_TOLERANCE * loss:
            raise MeasureError(f"{name} loss {losses[name]:.5f} here, {loss:.5f} with {peer}: not the same work")
    parts: dict[str, Callable[[Outcome], float]] = {ROUNDS: _rounds, TRAINING: _training, WHOLE: _whole}
    if "began" not in theirs[0].data:
        del parts[TRAINING]  # with Ray it cannot be told from the start of the workers
    for part, seconds in parts.items():
        mine, peers = [seconds(each) for each in ours], [seconds(each) for each in theirs]
        reference = references.get(part, "-")
        note = f"spread {spread(mine)}, {peer} {spread(peers)}"
        yield Row(
            number, f"{what}: {part}", "s", mine, peer, peers, target, reference, note, paired=len(mine) == len(peers)
        )  # fmt: skip


def _rounds(outcome: Outcome) -> float:
    stamps = outcome.data["stamps"]
    if len(stamps) != tree_workload.ROUNDS:
        raise MeasureError(f"{len(stamps)} rounds instead of {tree_workload.ROUNDS}")
    return float(stamps[-1] - stamps[0])


def _training(outcome: Outcome) -> float:
    return float(outcome.data["stamps"][-1] - outcome.data["began"])


def _whole(outcome: Outcome) -> float:
    return outcome.seconds


def _peak_mb(bench: Bench, script: Path, *arguments: str) -> float:
    """The largest sum of proportional memory over a run's processes, looked at 20 times a second."""
    peak = 0.0
    with bench.start(script, *arguments) as running:
        while running.process.poll() is None:
            peak = max(peak, processes.proportional_mb(processes.tree(running.process.pid)))
            time.sleep(0.05)
        running.finish()
    return peak
