"""E3 and E5: a disk that fails, and one that is slow."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

import pytest

from paceline.air import Result
from paceline.testing.invariants import check_run, committed_checkpoints
from paceline.testing.scripts import make_trainer, read_state
from tests.faults.bad_disk import BadDisk, Trouble, make_bad_disk
from tests.faults.cases import long_run, mostly_slow
from tests.faults.laboratory import Laboratory

STAGED = ".checkpoint_000002.tmp-"


@pytest.fixture
def disk(tmp_path: Path) -> BadDisk:
    return make_bad_disk(tmp_path)


FAILS = """
import sys
from paceline.air.errors import StorageError, TrainingFailedError
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.testing.scripts import ScriptPlan, make_trainer

plan = ScriptPlan.load(sys.argv[1])
try:
    make_trainer(plan).fit()
except TrainingFailedError as error:
    check_run(error.result.log_dir, error=error, cause={"rank": 0, "kind": "storage"}, attempts=1)
    Marks(plan.marks).say("failed", text=str(error))
except StorageError as error:
    check_run(error.result.log_dir, attempts=1)
    Marks(plan.marks).say("failed", text=str(error))
"""


def fail(lab: Laboratory, disk: BadDisk, *troubles: Trouble) -> str:
    """What fit() says when the disk has these troubles, though it might try again."""
    plan = lab.plan(failures={"max_failures": 3})
    with lab.program(FAILS, plan, env=disk.env(*troubles)) as driver:
        assert driver.wait() == 0
    (failed,) = lab.marks.read("failed")
    assert "Input/output error" in failed["text"]
    assert len(lab.marks.read("started", rank=0)) == 1
    return str(failed["text"])


def goes_on(lab: Laboratory, saved: list[int]) -> None:
    """What was committed before is whole, and a restore writes the rest anew."""
    assert [read_state(path) for path in committed_checkpoints(lab.trial_dir)] == saved
    result = make_trainer(lab.plan().continued(lab.trial_dir)).fit()
    check_run(result.path, result=result, iterations=6, attempts=2)
    assert [read_state(path) for path in committed_checkpoints(lab.trial_dir)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("call", mostly_slow(["write", "fsync", "close"], everyday=["fsync"]))
def test_a_checkpoint_whose_file_fails_is_not_committed(lab: Laboratory, disk: BadDisk, call: str) -> None:
    """E3: the third checkpoint meets EIO; the file is not written, synced or closed a second time."""
    text = fail(lab, disk, Trouble(call, STAGED, errno.EIO, which=1), Trouble("fsync", ".checkpoint_"))
    assert "checkpoint_000002" in text
    troubled = disk.met(call)[0] if call != "fsync" else next(path for path in disk.met("fsync") if STAGED in str(path))
    tries = Counter(disk.met(call))[troubled]
    assert tries == 1, f"{call} was tried {tries} times on {troubled}"
    goes_on(lab, [1, 2])


@pytest.mark.slow
def test_a_directory_that_cannot_be_synced_fails_the_checkpoint(lab: Laboratory, disk: BadDisk) -> None:
    """E3: the names in the staging directory are not on disk, so the checkpoint is not either."""
    fail(lab, disk, Trouble("fsync", STAGED, errno.EIO, which=4))
    goes_on(lab, [1, 2])


def test_a_journal_that_cannot_be_synced_ends_the_run(lab: Laboratory, disk: BadDisk) -> None:
    """E3: what is in the file is not known after that; it is never synced again, and what was synced can be loaded."""
    text = fail(lab, disk, Trouble("fdatasync", "journal.jsonl", errno.EIO, which=5))
    assert "journal" in text
    assert len(disk.met("fdatasync")) == 5
    result = Result.from_path(str(lab.trial_dir))
    assert result.checkpoint is not None
    saved = [read_state(path) for path in committed_checkpoints(lab.trial_dir)]
    assert saved == list(range(1, len(saved) + 1))
    goes_on(lab, saved)


SLOW = """
import sys, tempfile, time
from pathlib import Path
from paceline import train
from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from paceline.run.callbacks import Callback
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.testing.scripts import ScriptPlan
from paceline.train import DataParallelTrainer

plan, form, steps, every, step_s, size = ScriptPlan.load(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:7])

def peak_kb():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

def loop(config):
    marks, trial_dir, size = Marks(config["marks"]), Path.cwd().parent, int(config["size"])
    before, waited, staged, slowest = peak_kb(), 0.0, 0, 0.0
    for step in range(1, int(config["steps"]) + 1):
        time.sleep(config["step_s"])
        checkpoint = None
        if step % config["every"] == 0:
            content = bytes([step % 251]) * size
            if config["form"] == "dict":
                checkpoint = Checkpoint.from_dict({"step": step, "content": content})
            else:
                directory = Path(tempfile.mkdtemp(dir=trial_dir.parent))
                (directory / "content").write_bytes(content)
                checkpoint = Checkpoint.from_directory(str(directory))
            marks.say("handed over", step=step)
            del content
        began = time.monotonic()
        train.report({"iteration": step}, checkpoint=checkpoint)
        del checkpoint
        waited += time.monotonic() - began
        slowest = max(slowest, time.monotonic() - began)
        staged = max(staged, len([name for name in trial_dir.glob(".checkpoint_*")]))
    marks.say("loop", waited=waited, slowest=slowest, most_staged=staged, grown_kb=peak_kb() - before)

class Looking(Callback):
    def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
        Marks(plan.marks).say("committed", step=iteration)

settings = dict(marks=plan.marks, form=form, steps=steps, every=every, step_s=step_s, size=size)
began = time.monotonic()
result = DataParallelTrainer(
    loop,
    train_loop_config=settings,
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(
        storage_path=plan.storage, verbose=0, checkpoint_config=CheckpointConfig(**plan.checkpoints),
        callbacks=[Looking()],
    ),
).fit()
check_run(result.path, result=result, iterations=int(steps), attempts=1)
Marks(plan.marks).say("done", seconds=time.monotonic() - began, kept=len(result.best_checkpoints))
"""


def train_slowly(
    lab: Laboratory,
    disk: BadDisk,
    *,
    fsync_s: float,
    bytes_per_s: float,
    loop: tuple[object, ...],
    **checkpoints: object,
) -> dict[str, float]:
    """What the loop noticed of a disk at which only staged checkpoints are slow; they are all there, in order."""
    _, steps, every, *_ = loop
    troubles = [
        Trouble("fsync", "/.checkpoint_", wait_s=fsync_s),
        Trouble("write", "/.checkpoint_", bytes_per_s=bytes_per_s),
    ]
    plan = lab.plan(checkpoints=checkpoints)
    with lab.program(SLOW, plan, *map(str, loop), env=disk.env(*troubles)) as driver:
        assert driver.wait(timeout=250) == 0
    wanted = [step for step in range(1, int(str(steps)) + 1) if step % int(str(every)) == 0]
    assert [mark["step"] for mark in lab.marks.read("committed")] == wanted, "the order was not kept"
    saved = [int(path.name.rpartition("_")[2]) for path in committed_checkpoints(lab.trial_dir)]
    assert saved == list(range(len(wanted)))
    (seen,) = lab.marks.read("loop")
    return dict(seen)


@pytest.mark.parametrize("fsync_s", [0.05, long_run(5.0, seconds=300)])
def test_a_slow_disk_is_waited_for(lab: Laboratory, disk: BadDisk, fsync_s: float) -> None:
    """E5, in the foreground: report() takes as long as the disk, and everything is correct."""
    loop = ("directory", 3, 1, 0.0, 500_000)
    seen = train_slowly(lab, disk, fsync_s=fsync_s, bytes_per_s=1e6 if fsync_s > 1 else 1e7, loop=loop)
    assert seen["waited"] >= 3 * fsync_s
    assert seen["most_staged"] == 0


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", ["directory", "dict"])
def test_saving_in_the_background_costs_the_loop_little(lab: Laboratory, disk: BadDisk, form: str) -> None:
    """E5, in the background: a disk that needs 2 s for what comes every 3 s costs the loop at most 5 % of its time."""
    steps, step_s = 300, 0.05
    loop = (form, steps, 60, step_s, 1_000_000 if form == "directory" else 50_000)
    seen = train_slowly(lab, disk, fsync_s=0.3, bytes_per_s=1e6, loop=loop, async_save=True)
    overhead = seen["waited"] / (steps * step_s)
    print(f"{form}: the loop waited {overhead:.2%} of the time, at most {seen['slowest']:.3f} s")
    assert overhead <= 0.05


@pytest.mark.parametrize("form", ["directory", pytest.param("dict", marks=pytest.mark.slow)])
def test_a_disk_that_cannot_keep_up_holds_the_loop_back(lab: Laboratory, disk: BadDisk, form: str) -> None:
    """E5, in the background: two are under way at most, so that neither memory nor disk fills up."""
    seen = train_slowly(lab, disk, fsync_s=0.05, bytes_per_s=2e8, loop=(form, 12, 1, 0.0, 10_000_000), async_save=True)
    committed = {mark["step"]: mark["time"] for mark in lab.marks.read("committed")}
    for mark in lab.marks.read("handed over"):
        ahead = [step for step in range(1, mark["step"]) if committed[step] > mark["time"]]
        assert len(ahead) <= 2, f"at step {mark['step']}, {ahead} were under way"
    assert seen["most_staged"] <= 3
    assert seen["grown_kb"] < 64_000
