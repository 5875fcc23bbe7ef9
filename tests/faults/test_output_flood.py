"""K5: workers that print without end, without line ends, or bytes that are no text."""

from __future__ import annotations

import pytest

from tests.faults.cases import long_run
from tests.faults.laboratory import Laboratory

PROGRAM = """
import os, resource, sys
from pathlib import Path
from paceline import train
from paceline.air import RunConfig, ScalingConfig
from paceline.engine.local.crash_file import tail_of
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.testing.scripts import ScriptPlan
from paceline.train import DataParallelTrainer

plan, kind, megabytes, limit = ScriptPlan.load(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
marks = Marks(plan.marks)

def loop(config):
    piece = {
        "lines": b"x" * 99 + b"\\n",
        "one line": b"x" * 100,
        "binary": bytes(range(256)),
    }[config["kind"]]
    chunk = piece * ((1 << 20) // len(piece))
    out = sys.stdout.buffer
    for step in range(1, config["steps"] + 1):
        for _ in range(config["megabytes"] // config["steps"]):
            out.write(chunk)
        out.flush()
        train.report({"iteration": step})
    out.write(b"\\nthe last words\\n")
    out.flush()

settings = {"kind": kind, "megabytes": megabytes, "steps": 10}
trainer = DataParallelTrainer(
    loop,
    train_loop_config=settings,
    scaling_config=ScalingConfig(num_workers=2),
    # A decision at each step: the workers wait for the driver.
    run_config=RunConfig(storage_path=plan.storage, verbose=plan.verbose, max_log_bytes=limit, stop={"iteration": 99}),
)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = trainer.fit()
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
check_run(result.path, result=result, iterations=10, attempts=1)
logs = {path.name: path.stat().st_size for path in Path(result.path, "logs").iterdir()}
tails = [tail_of(str(Path(result.path, "logs", f"rank_{rank}.log")))[-40:] + "\\n" for rank in (0, 1)]
marks.say("done", grown_kb=grown, logs=logs, tails=tails)
"""

MEGABYTE = 1 << 20


@pytest.mark.parametrize("verbose", [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    ("kind", "megabytes", "limit"),
    [
        ("one line", 20, 4 * MEGABYTE),
        ("binary", 20, 4 * MEGABYTE),
        long_run("lines", 1000, 64 * MEGABYTE, seconds=300),
        long_run("one line", 100, 16 * MEGABYTE, seconds=300),
        long_run("binary", 1000, 64 * MEGABYTE, seconds=300),
    ],
)
def test_a_flood_of_output(lab: Laboratory, kind: str, megabytes: int, limit: int, verbose: int) -> None:
    """K5: the run ends as if nothing had been printed, its logs are bounded, and the driver holds little of it."""
    with lab.program(PROGRAM, lab.plan(verbose=verbose), kind, str(megabytes), str(limit)) as driver:
        assert driver.wait(timeout=250) == 0
    (done,) = lab.marks.read("done")
    for rank in (0, 1):
        assert done["tails"][rank].endswith("\nthe last words\n")
        assert done["logs"][f"rank_{rank}.log"] <= limit
        assert done["logs"].get(f"rank_{rank}.log.1", 0) <= 2 * limit + 100
    assert done["grown_kb"] < 100_000, "the driver held the output in memory"
