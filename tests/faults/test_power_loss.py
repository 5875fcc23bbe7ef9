"""E7: the power goes at every point at which something has just become durable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.air import Result
from paceline.testing.invariants import check_checkpoints, committed_checkpoints, whole_records
from paceline.testing.scripts import ScriptPlan, make_trainer, read_state
from tests.faults.laboratory import Laboratory
from tests.faults.power_loss import STRACE, WAYS, Call, Disk, calls_in

KEEP = 2


@pytest.fixture
def trace(lab: Laboratory) -> Path:
    """Where strace writes to; skips where it may not trace."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace, to record what a run does to its disk")
    tried = subprocess.run(["strace", "-f", "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"strace may not trace here: {tried.stderr.strip()}")
    return lab.root / "trace"


def promised_in(call: Call, marks: Path) -> Iterator[int]:
    """The iteration that rank 0's report() said is stored, if this call is what it wrote down afterwards."""
    if call.name == "write" and call.descriptor(0).parent == marks:
        said = json.loads(bytes.fromhex(call.arguments[1].strip('"').replace("\\x", "")))
        if (said["event"], said.get("rank")) == ("saved", 0):
            yield int(said["iteration"])


def check(tree: Path, promised: int, label: str) -> Path | None:
    """What is left can be listed, read and believed; what was promised is there. The trial directory, if any."""
    found = [path.parent for path in tree.glob("*/*/journal.jsonl")]
    if not found or not any(whole_records((found[0] / "journal.jsonl").read_bytes())):
        assert not promised, f"{label}: the run is gone"
        return None
    (trial_dir,) = found
    result = Result.from_path(str(trial_dir))
    check_checkpoints(trial_dir, result)
    saved = [read_state(path) for path in committed_checkpoints(trial_dir)]
    assert max(saved, default=0) >= promised, f"{label}: {promised} was promised, {saved} are there"
    assert len(saved) >= min(KEEP, promised), f"{label}: of {KEEP} to keep, {saved} are there"
    rows = [int(row) for row in result.metrics_dataframe.get("iteration", [])]
    assert rows == list(range(1, len(rows) + 1))
    assert len(rows) >= promised, f"{label}: rows up to {promised} were promised, {len(rows)} are there"
    return trial_dir


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("in_background", [False, True])
def test_the_power_may_go_at_any_time(lab: Laboratory, trace: Path, in_background: bool) -> None:
    """E7: whatever was not synced is lost, and every listed checkpoint is whole at each cut."""
    lab.storage.mkdir()
    plan = lab.plan(iterations=5, checkpoints={"num_to_keep": KEEP, "async_save": in_background})
    with lab.drive(plan, prefix=(*STRACE, "-o", str(trace))) as driver:
        assert driver.wait(timeout=200) == 0
    disk, promised, cuts, last = Disk(lab.root, "storage", "marks"), 0, 0, None
    left = lab.root / "left"
    restored: set[int] = set()
    for call in calls_in(trace.read_text().splitlines()):
        if not in_background:
            promised = max([promised, *promised_in(call, lab.marks.directory)])
        if not disk.apply(call):
            continue
        cuts += 1
        for way in WAYS:
            disk.leave("storage", way, left)
            last = check(left, promised, f"cut {cuts}, {way}")
            if last is not None and way == "strict" and promised not in restored:
                restored.add(promised)  # once for each promise, because it takes a while
                goes_on(lab, plan, last)
            shutil.rmtree(left)
    print(f"{cuts} cuts, each in {len(WAYS)} ways; {len(restored)} of them were restored")
    assert cuts > 30
    disk.leave("storage", "everything", left)
    assert sizes(left) == sizes(lab.storage), "the model of the disk is wrong"


def goes_on(lab: Laboratory, plan: ScriptPlan, trial_dir: Path) -> None:
    result = make_trainer(plan.continued(trial_dir)).fit()
    assert [int(row) for row in result.metrics_dataframe["iteration"]] == list(range(1, plan.iterations + 1))


def sizes(tree: Path) -> dict[str, int]:
    found = (path for path in tree.rglob("*") if path.is_file())
    return {str(path.relative_to(tree)): path.stat().st_size for path in found}
