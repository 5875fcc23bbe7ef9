"""K1 and K3: many reports, and many more workers than cores."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from tests.faults.cases import long_run
from tests.faults.laboratory import Laboratory

REPORTS = """
import os, resource, sys, time
from pathlib import Path
from paceline import train
from paceline.air import RunConfig, ScalingConfig
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.testing.scripts import ScriptPlan
from paceline.train import DataParallelTrainer

plan, count = ScriptPlan.load(sys.argv[1]), int(sys.argv[2])

def loop(config):
    began = time.monotonic()
    for iteration in range(1, config["count"] + 1):
        train.report({"iteration": iteration, "loss": 1 / iteration})
    Marks(config["marks"]).say("reported", seconds=time.monotonic() - began)

trainer = DataParallelTrainer(
    loop,
    train_loop_config={"count": count, "marks": plan.marks},
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(storage_path=plan.storage, verbose=0),
)
def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

before = peak()
result = trainer.fit()
grown = peak() - before  # before the dataframe is made, which is the user's own
check_run(result.path, result=result, iterations=count, attempts=1)
journal = Path(result.path, "journal.jsonl").stat().st_size
Marks(plan.marks).say("done", rows=len(result.metrics_dataframe), grown_kb=grown, journal=journal)
"""


@pytest.mark.parametrize("count", [10_000, long_run(100_000, seconds=300)])
def test_many_reports(lab: Laboratory, count: int) -> None:
    """K1: every row is there, the driver's memory hardly grows, and a row costs the journal the same to the end."""
    with lab.program(REPORTS, lab.plan(), str(count)) as driver:
        assert driver.wait(timeout=250) == 0
    (done,) = lab.marks.read("done")
    assert done["rows"] == count
    assert done["grown_kb"] <= 100_000
    assert done["journal"] / count < 400
    if count > 10_000:  # bounds are asserted in the long runs only, at ten times what is promised
        (reported,) = lab.marks.read("reported")
        print(f"{count / reported['seconds']:,.0f} reports/s, the driver grew by {done['grown_kb']} kB")
        assert count / reported["seconds"] >= 200


CROWD = """
import sys, time
from paceline import train
from paceline.air import FailureConfig, RunConfig, ScalingConfig
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.testing.scripts import ScriptPlan
from paceline.train import DataParallelTrainer

plan, workers, steps = ScriptPlan.load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

def loop(config):
    Marks(config["marks"]).say("started", rank=train.get_context().get_world_rank())
    total = 0
    for iteration in range(1, config["steps"] + 1):
        for number in range(200_000):  # all of them want a core
            total += number
        train.report({"iteration": iteration})

trainer = DataParallelTrainer(
    loop,
    train_loop_config={"steps": steps, "marks": plan.marks},
    scaling_config=ScalingConfig(num_workers=workers),
    run_config=RunConfig(
        storage_path=plan.storage, verbose=0, failure_config=FailureConfig(heartbeat_timeout_s=float(sys.argv[4]))
    ),
)
Marks(plan.marks).say("fit")
result = trainer.fit()
check_run(result.path, result=result, iterations=steps, attempts=1)
Marks(plan.marks).say("done", warnings=result.warnings, ranks=len(result.rank_metrics))
"""


def bare_pythons(count: int) -> float:
    """How long this machine takes to start so many interpreters and let them end."""
    began = time.monotonic()
    started = [subprocess.Popen([sys.executable, "-c", "pass"]) for _ in range(count)]
    assert [process.wait() for process in started] == [0] * count
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("workers", "steps", "heartbeat_timeout_s"), [(16, 2, 5.0), long_run(64, 30, 5.0, seconds=300)]
)
def test_many_more_workers_than_cores(lab: Laboratory, workers: int, steps: int, heartbeat_timeout_s: float) -> None:
    """K3: all get ready, none that only waits for a core is taken for dead, and none is left."""
    reference = bare_pythons(16) if workers == 64 else 0.0
    with lab.program(CROWD, lab.plan(), str(workers), str(steps), str(heartbeat_timeout_s)) as driver:
        assert driver.wait(timeout=250) == 0
    (done,) = lab.marks.read("done")
    assert done["warnings"] == []
    assert done["ranks"] == workers
    started = lab.marks.read("started")
    assert {mark["rank"] for mark in started} == set(range(workers))
    if workers == 64:
        (fit,) = lab.marks.read("fit")
        ready = (max(mark["time"] for mark in started) - fit["time"]) / 1e9
        print(f"64 workers ready after {ready:.2f} s; 16 bare interpreters take {reference:.2f} s: {json.dumps(done)}")
        assert ready <= max(100.0, 100 * reference)
