"""First 9: checkpoints within a budget. How much of the time they take is the benchmark checkpoint-budget."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from paceline import train
from paceline.testing import chaos
from paceline.testing.invariants import check_run, committed_checkpoints
from paceline.testing.processes import Driver, Marks
from paceline.train import Checkpoint, CheckpointConfig
from tests.faults.laboratory import Laboratory


def loop(config: dict[str, Any]) -> None:
    marks, rank = Marks(config["marks"]), train.get_context().get_world_rank()
    told = 0
    for step in range(1, 1_000_000):
        time.sleep(0.002)
        saves = train.should_checkpoint()
        if saves:
            told += 1
            marks.say("told", rank=rank, step=step, at=time.monotonic())
        state = Checkpoint.from_dict({"step": step, "at": time.monotonic(), "state": bytes(config["bytes"])})
        train.report({"step": step, "told": told}, checkpoint=state if saves else None)
        if told == config["saves"]:
            return


def test_the_run_says_when_to_save(lab: Laboratory) -> None:
    """To all ranks at the same step, and never before the last checkpoint is stored; nothing else stops or waits."""
    trainer = lab.trainer(
        loop,
        config={"bytes": 100_000, "saves": 4},
        checkpoint_config=CheckpointConfig(max_overhead=0.3),
    )
    with chaos(slow_storage={"bytes_per_second": 2_000_000}):
        result = trainer.fit()
    check_run(result.path, result=result, attempts=1)
    told = [[mark["step"] for mark in lab.marks.read("told", rank=rank)] for rank in (0, 1)]
    assert told[0] == told[1]
    assert len(told[0]) == 4
    saved = [Checkpoint.from_directory(path).to_dict()["step"] for path in committed_checkpoints(lab.trial_dir)]
    assert saved == told[0]
    assert not result.warnings


def _never_asks() -> None:
    train.report({"step": 1})


def test_a_loop_that_never_asks_is_told_about_it(lab: Laboratory) -> None:
    result = lab.trainer(_never_asks, checkpoint_config=CheckpointConfig(max_overhead=0.03)).fit()
    assert any("max_overhead=...) has no effect" in warning for warning in result.warnings)


PROGRAM = """
import sys
import time
from paceline.air import CheckpointConfig, RunConfig, ScalingConfig
from paceline.testing import chaos
from paceline.testing.processes import Marks
from paceline.train import DataParallelTrainer
from paceline.tune import Callback
from tests.firsts.test_09_checkpoint_budget import loop

class Commits(Callback):
    def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
        Marks(sys.argv[1]).say("stored", at=time.monotonic())

with chaos(slow_storage={"bytes_per_second": 4_000_000}, directory=sys.argv[1]):
    DataParallelTrainer(
        loop,
        train_loop_config={"marks": sys.argv[1], "bytes": 2_000_000, "saves": 1_000_000},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=sys.argv[2],
            verbose=0,
            checkpoint_config=CheckpointConfig(max_overhead=0.3, num_to_keep=2),
            callbacks=[Commits()],
        ),
    ).fit()
"""


@pytest.mark.faults
def test_after_a_kill_the_newest_checkpoint_is_at_most_two_intervals_old(lab: Laboratory) -> None:
    """It is oldest just before the next one is stored. The kill comes while that is being stored."""
    script = lab.root / "program.py"
    script.write_text(PROGRAM)
    arguments = [str(script), str(lab.marks.directory), str(lab.storage)]
    with Driver(arguments, output=lab.root / "driver.txt") as driver:
        lab.marks.wait("told", 6, rank=0)
        driver.kill()
        killed_at = time.monotonic()
        check_run(lab.trial_dir, processes=driver.known(), swept=False)
    taken = [mark["at"] for mark in lab.marks.read("told", rank=0)]
    stored = [mark["at"] for mark in lab.marks.read("stored")]
    interval = max(after - before for before, after in itertools.pairwise(taken))
    assert len(stored) >= 5
    ages = [until - since for since, until in zip(taken, [*stored[1:], killed_at], strict=False)]
    assert max(ages) <= 2 * interval, f"taken at {taken}, stored at {stored}, killed at {killed_at}"
    newest = Checkpoint.from_directory(committed_checkpoints(lab.trial_dir)[-1]).to_dict()
    saved_at = min(taken, key=lambda at: abs(at - newest["at"]))
    assert taken.index(saved_at) >= len(stored) - 1, "what was stored is there after the kill"
