"""Validations, when the driver dies at any step of them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from paceline.testing.invariants import check_run
from paceline.testing.processes import Driver, Marks, fault
from tests.faults.cases import mostly_slow
from tests.train.validating import check_metrics, run_of, trainer

PROJECT = Path(__file__).parents[2]

STEPS = [(f"{when}_journal_append", times) for when in ("before", "after") for times in range(3, 15)]
"""Of the driver: four rows, requests, checkpoints and results, in an order that varies."""
OTHERS = [("after_commit_rename", 2), ("checkpoint_committed", 3), ("before_ack", 2), ("before_trash", 1)]
EVERYDAY = [("before_journal_append", 6), ("after_journal_append", 9), ("after_commit_rename", 2), ("before_trash", 1)]


@pytest.mark.parametrize(("point", "times"), mostly_slow([*STEPS, *OTHERS], everyday=EVERYDAY))
def test_a_driver_that_died_at_any_step(tmp_path: Path, point: str, times: int) -> None:
    """Whatever was done is not lost, whatever was not is done by the next driver, and each row has its own metrics."""
    marks = Marks(tmp_path / "marks")
    plan = {"storage": str(tmp_path / "results"), "marks": str(marks.directory), "keep": 1}
    program = ["-m", "tests.train.validating", json.dumps(plan)]
    dying = fault(point, rank="driver", times=times)
    with Driver(program, output=tmp_path / "driver.txt", env=dying, cwd=PROJECT) as driver:
        status = driver.wait()
        assert status == -signal.SIGKILL, f"the driver did not die there:\n{driver.text()}"
    result = trainer(**plan, restore=str(run_of(tmp_path))).fit()  # type: ignore[arg-type]
    check_metrics(result)
    assert result.best_checkpoints[-1][1]["validation"]["error"] == min(result.metrics_dataframe["validation/error"])
    check_run(result.path, result=result)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_validation_worker_that_died(tmp_path: Path, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two, as its function begins, in the first of several tries."""
    marks = Marks(tmp_path / "marks")
    plan = {"storage": str(tmp_path / "results"), "marks": str(marks.directory), "retries": 1}
    for name, value in fault("validating", rank=rank, step=2, id="once", limit=1).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PACELINE_FAULT_NOTES", str(tmp_path))
    result = trainer(**plan, workers=2).fit()  # type: ignore[arg-type]
    check_metrics(result)
    assert len(result.warnings) == 1
    assert f"failed: rank {rank}: " in result.warnings[0]
    check_run(result.path, result=result)
