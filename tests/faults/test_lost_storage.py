"""E14: the storage is unmounted or deleted while a run uses it."""

from __future__ import annotations

import pytest

from paceline.testing.scripts import Action
from tests.faults.cases import mostly_slow
from tests.faults.laboratory import Laboratory
from tests.faults.private_mounts import MOUNT_SMALL, needs

PROGRAM = """
import os, shutil, subprocess, sys
from pathlib import Path
from paceline.air.errors import StorageError, TrainingFailedError
from paceline.run.callbacks import Callback
from paceline.testing.invariants import check_no_processes
from paceline.testing.processes import Marks
from paceline.testing.scripts import ScriptPlan, make_trainer

plan, way = ScriptPlan.load(sys.argv[1]), sys.argv[2]
marks = Marks(plan.marks)
disk = Path(plan.storage)

def unmount():
    subprocess.run(["umount", "--lazy", plan.storage], check=True)

def delete():
    for path in disk.iterdir():
        shutil.rmtree(path)

def replace():  # by a disk that has the same files
    copy = shutil.copytree(disk, Path(plan.marks, "copy"))
    unmount()
    shutil.copytree(copy, disk, dirs_exist_ok=True)

class Gone(Callback):
    trial_dir = None

    def on_trial_result(self, iteration, trials, trial, result, **info):
        # Where no checkpoint is to notice it, the journal must: the loggers open their files before that.
        has_begun = plan.every or Path(trial.local_path, "result.json").exists()
        if iteration >= 3 and has_begun and self.trial_dir is None:
            self.trial_dir = Path(trial.local_path)
            {"unmounted": unmount, "deleted": delete, "replaced": replace}[way]()
            marks.say("gone")
            marks.open_gate("worker")

gone = Gone()
try:
    make_trainer(plan, callbacks=[gone]).fit()
except (StorageError, TrainingFailedError) as error:
    kind = error.root_cause.kind if isinstance(error, TrainingFailedError) else "storage"
    marks.say("raised", type=type(error).__name__, kind=kind, text=str(error))
check_no_processes(gone.trial_dir)
left = [str(path.relative_to(disk)) for path in disk.rglob("*")]
marks.say("left", names=left)
"""


def lose(lab: Laboratory, way: str, *actions: Action, **settings: object) -> tuple[dict[str, object], list[str]]:
    """What fit() raised after the storage was lost at iteration 3, and what is where the storage was."""
    needs(MOUNT_SMALL, lab.storage)
    plan = lab.plan(*actions, **{"iterations": 1000, **settings})
    with lab.program(PROGRAM, plan, way, prefix=(*MOUNT_SMALL, str(lab.storage))) as driver:
        assert driver.wait() == 0
    (raised,) = lab.marks.read("raised")
    (left,) = lab.marks.read("left")
    return raised, left["names"]


@pytest.mark.parametrize("way", mostly_slow(["unmounted", "deleted"], everyday=["unmounted"]))
def test_the_next_commit_fails_and_nothing_is_made_in_its_place(lab: Laboratory, way: str) -> None:
    """E14: the checkpoint of iteration 4 finds no storage, and no empty tree appears on the disk below it."""
    raised, left = lose(lab, way, failures={"max_failures": 3})
    assert raised["kind"] == "storage"
    assert str(lab.storage) in str(raised["text"])
    assert left == []
    assert len(lab.marks.read("started", rank=0)) == 1


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("unmounted", "the storage was unmounted"),
        pytest.param("deleted", "the file was deleted", marks=pytest.mark.slow),
        ("replaced", "another file or disk took its place"),
    ],
)
def test_rows_without_checkpoints_notice_it_too(lab: Laboratory, way: str, told: str) -> None:
    """E14: a detached disk takes rows as before, but nobody will ever read them."""
    raised, left = lose(lab, way, every=0, iterations=100_000_000)
    assert raised["kind"] == "storage"
    assert told in str(raised["text"])
    assert "journal.jsonl" in str(raised["text"])
    assert way == "replaced" or left == []


@pytest.mark.parametrize("way", mostly_slow(["unmounted", "deleted"], everyday=["unmounted"]))
def test_a_retry_does_not_make_the_directories_again(lab: Laboratory, way: str) -> None:
    """E14: rank 1 dies after the storage is gone, so that a new attempt would start."""
    waits = Action("wait", 4, 1, str(lab.marks.directory)), Action("wait", 4, 0, str(lab.marks.directory))
    dies = Action("exit", 4, 1, 3)
    raised, left = lose(lab, way, *waits, dies, failures={"max_failures": 3})
    assert raised["kind"] == "storage"
    assert left == []
    assert len(lab.marks.read("started", rank=0)) == 1


SEARCH = """
import subprocess, sys
from pathlib import Path
from paceline.air import RunConfig
from paceline.run.callbacks import Callback
from paceline.testing.processes import Marks
from paceline.testing.scripts import ScriptPlan
from paceline.tune import TuneConfig, Tuner
from paceline import tune

plan = ScriptPlan.load(sys.argv[1])
marks = Marks(plan.marks)

def trial(config):
    Marks(config["marks"]).say("trial", x=config["x"])
    return {"score": config["x"]}

class Gone(Callback):
    def on_trial_complete(self, iteration, trials, trial, **info):
        if marks.claim("unmounted"):
            subprocess.run(["umount", "--lazy", plan.storage], check=True)

try:
    Tuner(
        trial,
        param_space={"x": tune.grid_search([1, 2, 3, 4]), "marks": plan.marks},
        tune_config=TuneConfig(max_concurrent_trials=1),
        run_config=RunConfig(storage_path=plan.storage, name="search", verbose=0, callbacks=[Gone()]),
    ).fit()
except Exception as error:
    marks.say("raised", type=type(error).__name__, text=str(error))
marks.say("left", names=[str(path) for path in Path(plan.storage).rglob("*")])
"""


def test_a_search_does_not_make_the_directories_of_its_next_trial(lab: Laboratory) -> None:
    """E14: the first trial has ended when the disk goes; those that were to follow have no place to be."""
    needs(MOUNT_SMALL, lab.storage)
    with lab.program(SEARCH, lab.plan(), prefix=(*MOUNT_SMALL, str(lab.storage))) as driver:
        assert driver.wait() == 0
    (left,) = lab.marks.read("left")
    assert left["names"] == []
    (raised,) = lab.marks.read("raised")
    assert raised["type"] == "StorageError"
    assert str(lab.storage) in raised["text"]
