"""What a tracker costs a training: MLflow, whose server is killed in the middle and comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import OURS, Bench, MeasureError, Outcome, Script
from benchmarks.mlflow_server import PYTHON, MLflowServer
from benchmarks.table import Row, Target

SECONDS = 15.0
"""Of training; with a tracker it continues until the server is back."""
DOWN_S = 3.0
"""How long the server stays away, beside the time that it takes to start."""


def killed_server(bench: Bench) -> Iterator[Row]:
    """Steps per second, each of them answered by the driver, beside the same training without a tracker."""
    if not PYTHON.exists():
        raise MeasureError("there is no .venv-trackers: `make bench` makes it")
    ours, theirs, rows = [], [], []
    for _ in range(bench.repeats(3)):
        theirs.append(bench.run(OURS / "tracked.py", str(SECONDS), "-").data["rate"])
        outcome = _with_killed_server(bench)
        if outcome.data["arrived"] != outcome.data["steps"]:
            raise MeasureError(f"of {outcome.data['steps']} rows MLflow has {outcome.data['arrived']}")
        ours.append(outcome.data["rate"])
        rows.append(outcome.data["steps"])
    note = f"all of {min(rows):,} rows and more arrived once; the server was away for {DOWN_S:.0f} s and its start"
    yield Row(
        *("T1", "steps with MLflow, server killed and back", "1/s", ours, "no tracker", theirs),
        target=Target("ratio", "least", 0.95),
        note=note,
        paired=True,
    )


def _with_killed_server(bench: Bench) -> Outcome:
    _, folder = bench.make_place()
    server = MLflowServer(folder)
    try:
        server.start()
        with bench.start(OURS / "tracked.py", str(SECONDS), server.uri) as script:
            _wait_for_rows(script)
            server.kill()
            time.sleep(DOWN_S)
            server.start()
            (script.place / "gate").touch()
            return script.finish(timeout=900)
    finally:
        server.kill()


def _wait_for_rows(script: Script) -> None:
    """The tracker has taken some rows."""
    deadline = time.monotonic() + 120
    while not any('"rows":0,' not in path.read_text() for path in _cursors(script.place)):
        if script.process.poll() is not None or time.monotonic() > deadline:
            raise MeasureError(f"no rows reached the tracker:\n{script.log_tail()}")
        time.sleep(0.05)


def _cursors(place: Path) -> list[Path]:
    return list(place.glob("results/*/*/trackers/mlflow.json"))
