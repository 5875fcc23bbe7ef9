"""First 2: whatever ends a run, its user reads one screen with one traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import paceline

MOST_LINES = 30
TRACEBACK = "Traceback (most recent call last):"

ZERO_DIVISION = """
import torch
import torch.distributed as dist

from paceline import train
from paceline.air import RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer


def loop():
    for step in range(10):
        if train.get_context().get_world_rank() == 1 and step == 3:
            1 / 0
        dist.all_reduce(torch.ones(1))
        train.report({"step": step})


if __name__ == "__main__":
    TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=4), run_config=RunConfig(storage_path=".")).fit()
"""

DEATHS = """
import os
import resource
import signal
import sys

from paceline import train
from paceline.air import FailureConfig, RunConfig, ScalingConfig
from paceline.train import DataParallelTrainer


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    rows = bytearray(2**31)


def loop(config):
    train.report({"step": 0})
    if train.get_context().get_world_rank() == 1:
        {"killed": killed, "limited": limited, "wrong": lambda: 1 / 0}[config["end"]]()


if __name__ == "__main__":
    try:
        DataParallelTrainer(
            loop,
            train_loop_config={"end": sys.argv[1]},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path="."),
        ).fit()
    except ZeroDivisionError as error:
        print("caught:", error.rank, error.step, error.traceback.splitlines()[-1], error.result.error is error)
        sys.exit(1)
"""


def screen_of(directory: Path, source: str, *arguments: str) -> str:
    """Everything that a script prints which does not catch the failure."""
    script = directory / "script.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, script, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(Path(paceline.__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) <= MOST_LINES, done.stdout
    return done.stdout


def test_an_exception_while_the_others_wait_in_a_collective(tmp_path: Path) -> None:
    screen = screen_of(tmp_path, ZERO_DIVISION)
    assert screen.count(TRACEBACK) == 1, screen
    assert "Training failed: rank 1: ZeroDivisionError: division by zero" in screen
    assert re.search(rf'File "{tmp_path}/script.py", line \d+, in loop\n +1 / 0\n', screen), "the user's own line"
    assert "paceline/" not in screen.split(TRACEBACK)[1].split("To continue")[0], "no frame of ours"
    assert re.search(rf"Called in {tmp_path}/script.py:\d+: TorchTrainer\(", screen)


def test_the_exception_is_caught_by_its_own_type(tmp_path: Path) -> None:
    screen = screen_of(tmp_path, DEATHS, "wrong")
    assert "caught: 1 1 ZeroDivisionError: division by zero True" in screen
    assert TRACEBACK not in screen


def test_a_kill_is_decoded(tmp_path: Path) -> None:
    screen = screen_of(tmp_path, DEATHS, "killed")
    assert screen.count(TRACEBACK) == 0, screen
    assert "Training failed: rank 1: the process was killed by SIGKILL (9)" in screen
    assert "out-of-memory killer" in screen


def test_a_limit_of_memory_is_decoded(tmp_path: Path) -> None:
    screen = screen_of(tmp_path, DEATHS, "limited")
    assert screen.count(TRACEBACK) == 1, screen
    assert "Training failed: rank 1: MemoryError" in screen
    assert "its address space is limited to 1.0 GB (RLIMIT_AS, `ulimit -v`)" in screen
