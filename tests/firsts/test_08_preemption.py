"""First 8: SIGTERM or SIGUSR1 to the driver or to any worker stops all ranks at one step, and no step is lost.

tests/faults/test_preemption.py has the faults one by one, also signals to workers alone.
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest

from paceline import train
from paceline.air import Result
from paceline.testing.invariants import check_run, committed_checkpoints
from paceline.testing.processes import Driver, Marks, wait_for
from paceline.train import Checkpoint
from tests.faults.cases import rounds
from tests.faults.laboratory import Laboratory

GRACE_S = 30.0
PROGRAM = """
import sys
from paceline.air import FailureConfig, RunConfig, ScalingConfig
from paceline.train import DataParallelTrainer
from tests.firsts.test_08_preemption import loop

DataParallelTrainer(
    loop,
    train_loop_config={"marks": sys.argv[1]},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(
        name="preempted", storage_path=sys.argv[2], verbose=1, failure_config=FailureConfig(preemption_grace_s=30)
    ),
).fit(resume="auto")
"""


def loop(config: dict[str, Any]) -> None:
    marks, rank = Marks(config["marks"]), train.get_context().get_world_rank()
    last = train.get_checkpoint()
    start = 0 if last is None else last.to_dict()["step"]
    marks.say("started", rank=rank, after=start, pid=os.getpid())
    for step in range(start + 1, 1_000_000):
        saves = train.should_checkpoint()
        preemption = train.preempted()
        assert (preemption is None) or preemption.seconds_left <= GRACE_S
        marks.say("step", rank=rank, step=step)
        train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}) if saves else None)


def preempt_and_continue(lab: Laboratory, times: int, seed: int) -> None:
    """One run, continued by a new driver after each preemption."""
    chance = random.Random(seed)
    script = lab.root / "program.py"
    script.write_text(PROGRAM)
    steps_before = 0
    for number in range(times):
        with Driver(
            [str(script), str(lab.marks.directory), str(lab.storage)], output=lab.root / f"driver_{number}.txt"
        ) as driver:
            workers = lab.marks.wait("started", 2 * (number + 1))[-2:]
            step = steps_before + chance.randint(1, 30)
            wait_for(lambda step=step: len(lab.marks.read("step", rank=0)) >= step, f"step {step}")
            driver.family()
            signalled_at = time.monotonic()
            to_workers = chance.choice([[], workers[:1], workers])
            for worker in to_workers:
                os.kill(worker["pid"], chance.choice([signal.SIGTERM, signal.SIGUSR1]))
            driver.send(chance.choice([signal.SIGTERM, signal.SIGUSR1]))
            assert driver.wait() == 128 + signal.SIGTERM
            assert time.monotonic() - signalled_at < GRACE_S
            check_run(lab.trial_dir, processes=driver.known())
        done = [[mark["step"] for mark in lab.marks.read("step", rank=rank)] for rank in (0, 1)]
        assert done[0] == done[1] == list(range(1, len(done[0]) + 1)), "a step was lost, or done twice"
        saved = Checkpoint.from_directory(committed_checkpoints(lab.trial_dir)[-1]).to_dict()["step"]
        assert saved == len(done[0]) == len(Result.from_path(str(lab.trial_dir)).metrics_dataframe)
        steps_before = saved


def test_preempted_runs_lose_no_step(lab: Laboratory) -> None:
    preempt_and_continue(lab, 2, seed=8)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_fifty_preemptions_lose_no_step(lab: Laboratory) -> None:
    preempt_and_continue(lab, rounds(50), seed=88)
