"""Storage that is full, forbidden or damaged, and death while old checkpoints are removed."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from paceline.air import Checkpoint, CheckpointConfig, Result, session
from paceline.air.errors import CheckpointCorruptError, CheckpointError, PacelineError
from paceline.air.manifest import verify
from paceline.testing import chaos
from paceline.testing.invariants import check_run, committed_checkpoints
from paceline.testing.processes import Driver
from paceline.testing.scripts import ScriptPlan, make_trainer, read_state, score
from tests.faults.cases import long_run, mostly_slow, rounds
from tests.faults.laboratory import Laboratory
from tests.faults.private_mounts import MOUNT_READ_ONLY, MOUNT_SMALL, needs
from tests.ordinary import PREFIX

MEGABYTE = 1 << 20

FULL_DISK = """
import errno, sys
from paceline.air.errors import TrainingFailedError
from paceline.testing.processes import Marks
from paceline.testing.invariants import check_run, committed_checkpoints
from paceline.testing.scripts import ScriptPlan, make_trainer, read_state

plan = ScriptPlan.load(sys.argv[1])
try:
    make_trainer(plan).fit()
except TrainingFailedError as error:
    trial_dir = error.result.log_dir
    check_run(trial_dir, error=error, cause={"rank": 0, "kind": "storage"}, attempts=1)
    saved = [read_state(path) for path in committed_checkpoints(trial_dir)]
    Marks(plan.marks).say("full", text=str(error), saved=saved, rows=len(error.result.metrics_dataframe))
"""


def test_full_disk_ends_the_run_once_with_the_older_checkpoints_intact(lab: Laboratory) -> None:
    """E1: The fourth checkpoint of 2 MB does not fit; trying again could not help, so it is not tried."""
    needs(MOUNT_SMALL, lab.storage)
    plan = lab.plan(payload=MEGABYTE, failures={"max_failures": 3})
    script = lab.root / "script.py"
    script.write_text(FULL_DISK)
    arguments = [str(script), str(plan.save(lab.root / "plan.json"))]
    with Driver(arguments, output=lab.root / "driver.txt", prefix=(*MOUNT_SMALL, str(lab.storage))) as driver:
        assert driver.wait() == 0
    (mark,) = lab.marks.read("full")
    assert mark["saved"] == [1, 2, 3]
    assert mark["rows"] >= 3
    assert "space" in mark["text"], "the error does not say that the disk is full"
    assert ".checkpoint_000003" in mark["text"] or "checkpoint_000003" in mark["text"]
    assert len(lab.marks.read("started", rank=0)) == 1


def test_read_only_storage_is_refused_before_a_worker_starts(lab: Laboratory) -> None:
    """E4."""
    needs(MOUNT_READ_ONLY, lab.storage)
    with lab.drive(lab.plan(), prefix=(*MOUNT_READ_ONLY, str(lab.storage))) as driver:
        assert driver.wait() == 1
        assert "StorageError" in driver.text()
        assert str(lab.storage) in driver.text()
    assert lab.marks.read("started") == []
    assert list(lab.storage.iterdir()) == []


def test_forbidden_storage_is_refused_before_a_worker_starts(lab: Laboratory) -> None:
    """E4."""
    lab.storage.mkdir()
    lab.storage.chmod(0o555)
    with lab.drive(lab.plan(), prefix=PREFIX) as driver:
        assert driver.wait() == 1
        text = driver.text()
    assert "StorageError" in text
    assert str(lab.storage) in text
    assert f"uid {os.geteuid()}" in text
    assert lab.marks.read("started") == []


DAMAGES = ["flip", "truncate", "empty", "delete"]
FILES = ["nested/weights.bin", "rank_0.bin", "state.json", "MANIFEST.json"]


@pytest.mark.usefixtures("fault_engine")
@pytest.mark.parametrize(
    ("file", "damage"),
    mostly_slow([(file, damage) for file in FILES for damage in DAMAGES], everyday=[*zip(FILES, DAMAGES, strict=True)]),
)
def test_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(lab: Laboratory, file: str, damage: str) -> None:
    """E6."""
    with chaos(corrupt_checkpoint={"step": 4, "file": file, "how": damage}, fail={"rank": 0, "step": 5}):
        make_trainer(lab.plan()).fit(raise_on_error=False)
    newest = lab.trial_dir / "checkpoint_000003"
    result = lab.succeed(lab.plan().continued(lab.trial_dir))
    assert lab.marks.read("started", rank=0)[-1]["after"] == 3
    assert newest.with_name(f"{newest.name}.corrupt").is_dir()
    assert any(newest.name in warning for warning in result.warnings)


def test_without_a_valid_checkpoint_the_damaged_ones_are_named(lab: Laboratory) -> None:
    """E6."""
    with chaos(corrupt_checkpoint={"file": "nested/*", "times": 4}, fail={"rank": 0, "step": 5}) as faults:
        make_trainer(lab.plan()).fit(raise_on_error=False)
    assert len(faults.fired) == 1 + 4
    names = [path.name for path in committed_checkpoints(lab.trial_dir)]
    assert len(names) == 4
    with pytest.raises(PacelineError) as caught:
        make_trainer(lab.plan().continued(lab.trial_dir)).fit()
    assert all(name in str(caught.value) for name in names)
    assert all(
        (lab.trial_dir / name / "state.json").exists() or (lab.trial_dir / f"{name}.corrupt").exists() for name in names
    )
    check_run(lab.trial_dir)


@pytest.mark.parametrize("flips", [60, long_run(rounds(2000), seconds=300)])
def test_every_flipped_bit_and_every_cut_is_found(lab: Laboratory, flips: int) -> None:
    """E6."""
    lab.succeed(lab.plan(iterations=1))
    (checkpoint,) = committed_checkpoints(lab.trial_dir)
    verify(checkpoint)
    files = [path for path in checkpoint.rglob("*") if path.is_file() and path.stat().st_size]
    dice = random.Random(7)
    for _ in range(flips):
        path = dice.choice(files)
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        for content in (bytes(damaged), whole[: dice.randrange(len(whole))], whole + b"\0"):
            path.write_bytes(content)
            with pytest.raises(CheckpointError):
                verify(checkpoint)
        path.write_bytes(whole)
    verify(checkpoint)


def test_file_that_was_never_part_of_it_is_found(lab: Laboratory) -> None:
    lab.succeed(lab.plan(iterations=1))
    (checkpoint,) = committed_checkpoints(lab.trial_dir)
    (checkpoint / "nested" / "stranger.bin").write_bytes(b"not mine")
    with pytest.raises(CheckpointCorruptError, match=r"stranger\.bin"):
        verify(checkpoint)


KEEP = 2


@pytest.mark.usefixtures("fault_engine")
@pytest.mark.parametrize(
    ("kills", "order"),
    [
        (3, "max"),
        pytest.param(3, "min", marks=pytest.mark.slow),
        *[long_run(rounds(25), order, seconds=300) for order in ("max", "min")],
    ],
)
def test_best_and_newest_checkpoints_survive_kills_at_random_moments(lab: Laboratory, kills: int, order: str) -> None:
    """E8: Whenever the driver dies: the best ones and the newest are there, whole, and the run goes on."""
    dice = random.Random(kills)
    plan = lab.plan(
        iterations=1_000_000,
        payload=100_000,
        checkpoints={
            "num_to_keep": KEEP,
            "checkpoint_score_attribute": "score",
            "checkpoint_score_order": order,
        },
    )
    sign = 1 if order == "max" else -1
    for turn in range(kills):
        with lab.drive(plan if turn == 0 else plan.continued(lab.trial_dir)) as driver:
            before = len(lab.marks.read("saved", rank=0))
            lab.marks.wait("saved", before + dice.randint(1, 8), rank=0)
            time.sleep(dice.uniform(0, 0.03))  # a random moment is the fault itself: anywhere in a commit
            driver.kill()
            check_run(lab.trial_dir, processes=driver.known(), swept=False)
        promised = {mark["iteration"] for mark in lab.marks.read("saved", rank=0)}
        present = {read_state(path) for path in committed_checkpoints(lab.trial_dir)}
        assert max(present) >= max(promised), "the newest is gone"
        best = sorted(promised | present, key=lambda iteration: sign * score(iteration))[-KEEP:]
        assert set(best) <= present, f"turn {turn}: the best are {best}, there are {sorted(present)}"
    done = len(Result.from_path(str(lab.trial_dir)).metrics_dataframe)
    last = ScriptPlan(**{**vars(plan.continued(lab.trial_dir)), "iterations": done + 2})
    result = make_trainer(last).fit()
    check_run(result.path, result=result, iterations=done + 2)


@pytest.mark.usefixtures("fault_engine")
def test_ranks_that_save_different_files_under_one_name_are_refused(lab: Laboratory) -> None:
    """E15."""

    def loop() -> None:
        for name in ("its own", "shared"):
            place = Path.cwd() / name
            place.mkdir()
            file = f"part_{session.get_world_rank()}" if name == "its own" else "weights.bin"
            (place / file).write_text(str(session.get_world_rank()))
            session.report({"name": name}, checkpoint=Checkpoint.from_directory(str(place)))

    error = lab.failure_of(loop, checkpoint_config=CheckpointConfig(keep_all_ranks=True))
    assert error.root_cause is not None
    assert error.root_cause.kind == "storage"
    assert "weights.bin" in str(error)
    assert error.result is not None
    assert error.result.checkpoint is not None
    assert {path.name for path in Path(error.result.checkpoint.path).glob("part_*")} == {"part_0", "part_1"}
