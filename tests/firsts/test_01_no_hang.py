"""First 1: no run hangs. A rank that does not come is named, with its line, its last step and every rank's stack."""

from __future__ import annotations

import inspect
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from paceline import train
from paceline.air import FailureConfig
from paceline.air.errors import HangError, ReportMismatchError, TrainingFailedError, WorkerDiedError
from paceline.train.torch import TorchConfig
from tests.faults.laboratory import Laboratory

STEPS = 8
LIMIT_S = 3.0
BOUND_S = 1.0
"""How long after its limit a hang may be noticed. Tests allow ten times as much, and only `make test-faults` asks."""


def fall_asleep() -> None:
    time.sleep(3600)


def end_the_process() -> None:
    os._exit(0)


def stop_the_process() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def training(trouble: str) -> Callable[[], None]:
    """A loop whose rank 1 is in trouble at step 5."""

    def loop() -> None:
        import torch
        import torch.distributed as dist

        for step in range(1, STEPS + 1):
            if train.get_context().get_world_rank() == 1 and step == 5:
                if trouble == "return":
                    return
                if trouble == "skip":
                    continue
                {"sleep": fall_asleep, "exit": end_the_process, "stop": stop_the_process}[trouble]()
            if trouble != "skip":
                dist.all_reduce(torch.ones(1))
            train.report({"step": step})

    return loop


def failure_of(lab: Laboratory, trouble: str, **failures: Any) -> TrainingFailedError:
    """It leaves no process behind: the laboratory looks for them."""
    return lab.failure_of(training(trouble), backend=TorchConfig(), failure_config=FailureConfig(**failures))


def line_in(function: Callable[..., Any]) -> str:
    return f"{__file__}:{inspect.getsourcelines(function)[1] + 1}"


def check_sleeper(error: TrainingFailedError) -> None:
    cause = error.root_cause
    assert cause is not None
    assert (cause.rank, cause.kind, error.step) == (1, "hang", 4)
    assert f"rank 1 is at {line_in(fall_asleep)}, in fall_asleep, after report 4" in cause.message
    assert f"rank 0 waits in all_reduce at {__file__}:" in cause.message
    for stack in ("-- rank 1 --", "in fall_asleep", "-- rank 0 --", "in all_reduce"):
        assert stack in cause.traceback
    assert isinstance(error.__cause__, HangError)


def test_a_hang_ends_by_default() -> None:
    assert FailureConfig().hang_timeout_s == "auto"


def test_a_rank_that_sleeps(lab: Laboratory) -> None:
    check_sleeper(failure_of(lab, "sleep", hang_timeout_s=1.0))


def test_a_rank_that_returns_early(lab: Laboratory) -> None:
    error = failure_of(lab, "return")
    assert error.root_cause is not None
    assert (error.root_cause.rank, error.root_cause.kind) == (1, "report_mismatch")
    waiting = f"rank 1 returned after report 4 while rank 0 waited in all_reduce at {__file__}:"
    assert waiting in error.root_cause.message
    assert isinstance(error.__cause__, ReportMismatchError)


def test_a_rank_that_skips_a_report(lab: Laboratory) -> None:
    error = failure_of(lab, "skip")
    assert isinstance(error.__cause__, ReportMismatchError)
    assert f"rank 1: {STEPS - 1} (finished)" in str(error)


def test_a_rank_that_ends_its_process(lab: Laboratory) -> None:
    error = failure_of(lab, "exit")
    assert error.root_cause is not None
    assert (error.root_cause.rank, error.root_cause.kind) == (1, "premature_exit")
    assert isinstance(error.__cause__, WorkerDiedError)


def test_a_rank_that_is_stopped(lab: Laboratory) -> None:
    error = failure_of(lab, "stop", heartbeat_timeout_s=1.0)
    assert error.root_cause is not None
    assert (error.root_cause.rank, error.root_cause.kind) == (1, "unresponsive")
    assert isinstance(error.__cause__, HangError)


@pytest.mark.faults
def test_a_hang_is_noticed_in_time(lab: Laboratory) -> None:
    failure_of(lab, "exit")  # The warden has loaded PyTorch from here on.
    began = time.monotonic()
    check_sleeper(failure_of(lab, "sleep", hang_timeout_s=LIMIT_S))
    assert time.monotonic() - began < LIMIT_S + 10 * BOUND_S
