"""The wall clock jumps while a run is under way: an administrator sets it, or a laptop wakes up."""

from __future__ import annotations

from importlib.metadata import files

import pytest

from paceline.air import Result
from paceline.testing.invariants import check_run, journal_records
from paceline.testing.scripts import Action, ScriptPlan
from tests.faults.laboratory import Laboratory

LIMITS = {"hang_timeout_s": 60, "heartbeat_timeout_s": 30}
"""Both are shorter than the jump: if one were measured by the wall clock, the run would fail."""


def wall_clock(lab: Laboratory) -> dict[str, str]:
    """Variables that let the file `offset` move the wall clock of a driver and of its workers."""
    (library,) = (file for file in files("libfaketime") or () if file.name == "libfaketime.so.1")
    return {
        "LD_PRELOAD": str(library.locate()),
        "FAKETIME_TIMESTAMP_FILE": str(lab.root / "offset"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }


@pytest.mark.parametrize("jump", ["+3600", pytest.param("-3600", marks=pytest.mark.slow)])
def test_a_jump_of_the_wall_clock_ends_nothing(lab: Laboratory, jump: str) -> None:
    """B8: no limit expires, and the rows stay in order."""
    waiting = [Action("wait", 4, rank, str(lab.marks.directory)) for rank in (0, 1)]
    plan = lab.plan(*waiting, iterations=8, every=2, failures=LIMITS)
    offset = lab.root / "offset"
    offset.write_text("+0")
    with lab.drive(plan, env=wall_clock(lab)) as driver:
        lab.marks.wait("action", 2, do="wait")
        offset.write_text(jump)
        lab.marks.open_gate("worker")
        assert driver.wait() == 0, driver.text()
        check_run(lab.trial_dir, processes=driver.known(), attempts=1)
    rows = [record for record in journal_records(lab.trial_dir) if record["kind"] == "row" and record["rank"] == 0]
    assert [row["index"] for row in rows] == list(range(1, 9))
    before, after = rows[2]["stamp"], rows[-1]["stamp"]
    assert abs((after - before) - int(jump)) < 600, "the clock did not jump: the test proves nothing"
    elapsed = [row["elapsed"] for row in rows]
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] < 600
    assert Result.from_path(str(lab.trial_dir)).metrics_dataframe["time_total_s"].iloc[-1] < 600


def test_a_run_is_restored_though_the_clock_was_set_back(lab: Laboratory) -> None:
    """B8: which checkpoint is newest, and whose lock is stale, does not depend on the time of day."""
    plan = lab.plan(Action("exit", 5, 1, 3), checkpoints={"keep_all_ranks": True})
    lab.fail(plan, {"kind": "exit"})
    (lab.root / "offset").write_text("-3600")
    again = ScriptPlan(**{**vars(plan.continued(lab.trial_dir)), "iterations": 7})
    with lab.drive(again, env=wall_clock(lab)) as driver:
        assert driver.wait() == 0, driver.text()
        check_run(lab.trial_dir, processes=driver.known(), attempts=2)
    assert [mark["after"] for mark in lab.marks.read("started", rank=0)] == [0, 4]
    assert list(Result.from_path(str(lab.trial_dir)).metrics_dataframe["iteration"]) == list(range(1, 8))
