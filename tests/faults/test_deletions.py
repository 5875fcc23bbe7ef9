"""E9: old checkpoints that the system refuses to delete."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from paceline.testing.invariants import check_run, committed_checkpoints, journal_records
from paceline.testing.scripts import make_trainer, read_state
from tests.faults.cases import mostly_slow
from tests.faults.laboratory import Laboratory
from tests.faults.private_mounts import UNSHARE
from tests.ordinary import PREFIX

PROGRAM = """
import glob, os, subprocess, sys
from paceline.run.callbacks import Callback
from paceline.storage import commit
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.testing.scripts import ScriptPlan, make_trainer

plan, way, relents_at = ScriptPlan.load(sys.argv[1]), sys.argv[2], int(sys.argv[3])
marks = Marks(plan.marks)

def call(*command):
    subprocess.run(command, check=True)

def now_called():
    (path,) = [*glob.glob(f"{plan.storage}/*/*/checkpoint_000000"), *glob.glob(f"{plan.storage}/*/*/.trash-*_000000-*")]
    return path

WAYS = {  # how the first checkpoint comes to resist, and how to make it give in
    "busy": (lambda path: call("mount", "--bind", path, path), lambda path: call("umount", path)),
    "busy inside": (
        lambda path: call("mount", "--bind", f"{path}/nested", f"{path}/nested"),
        lambda path: call("umount", f"{path}/nested"),
    ),
    "immutable": (
        lambda path: call("chattr", "+i", f"{path}/state.json"),
        lambda path: call("chattr", "-i", f"{path}/state.json"),
    ),
    "forbidden": (
        lambda path: os.chmod(f"{path}/nested", 0o500),
        lambda path: os.chmod(f"{path}/nested", 0o700),
    ),
}

class Resistance(Callback):
    def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
        if iteration == 1:
            WAYS[way][0](now_called())
        if iteration == relents_at:
            WAYS[way][1](now_called())

def counted(function):
    def call(path):
        if "checkpoint_000000" in str(path):
            marks.say("tried", path=str(path))
        return function(path)
    return call

commit.delete_tree, commit.to_trash = counted(commit.delete_tree), counted(commit.to_trash)
result = make_trainer(plan, callbacks=[Resistance()]).fit()
if relents_at > plan.iterations:
    WAYS[way][1](now_called())
check_run(result.path, result=result, iterations=plan.iterations, attempts=1, swept=relents_at <= plan.iterations)
marks.say("result", warnings=result.warnings, path=result.path)
"""

PREFIXES = {"busy": (*UNSHARE, "--"), "busy inside": (*UNSHARE, "--"), "immutable": (), "forbidden": PREFIX}


def needs(way: str, lab: Laboratory) -> None:
    """Skip where the system cannot be made to refuse in this way."""
    probe = lab.root / "probe"
    probe.mkdir()
    (probe / "file").touch()
    try_it = {"immutable": f"chattr +i {probe}/file && chattr -i {probe}/file"}
    command = [*PREFIXES[way], "sh", "-c", try_it.get(way, "true")]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"a deletion cannot be made to fail in this way: {tried.stderr.strip()}")


def run(lab: Laboratory, way: str, relents_at: int) -> list[str]:
    needs(way, lab)
    plan = lab.plan(iterations=8, checkpoints={"num_to_keep": 1})
    with lab.program(PROGRAM, plan, way, str(relents_at), prefix=PREFIXES[way]) as driver:
        assert driver.wait() == 0
    (said,) = lab.marks.read("result")
    warnings: list[str] = said["warnings"]
    return warnings


@pytest.mark.parametrize("way", mostly_slow(["busy", "busy inside", "immutable", "forbidden"], everyday=["busy"]))
def test_a_checkpoint_that_resists_is_reported_once_and_deleted_when_it_gives_in(lab: Laboratory, way: str) -> None:
    """E9: the run goes on, and a later commit finds that it can be deleted now."""
    (warning,) = run(lab, way, relents_at=5)
    assert "checkpoint_000000" in warning
    assert "could not be deleted" in warning
    assert len(lab.marks.read("tried")) > 3, "it was not tried again with each checkpoint"
    *_, ended = journal_records(lab.trial_dir)
    assert ended["warnings"] == [warning]


@pytest.mark.slow
def test_what_resists_to_the_end_is_deleted_by_a_restore(lab: Laboratory) -> None:
    """E9: the result still has one warning, and the next driver removes what is left."""
    (warning,) = run(lab, "busy", relents_at=99)
    assert "Device or resource busy" in warning
    assert {path.name for path in lab.trial_dir.glob("checkpoint_*")} == {"checkpoint_000000", "checkpoint_000007"}
    shutil.rmtree(lab.marks.directory)
    result = make_trainer(lab.plan(iterations=8).continued(lab.trial_dir)).fit()
    check_run(result.path, result=result, iterations=8)
    assert [read_state(path) for path in committed_checkpoints(lab.trial_dir)] == [8]
