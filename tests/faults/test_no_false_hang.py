"""B6: what looks like a hang and is none. Each rank goes on once the driver has had time to be wrong twice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, FailureConfig, session
from paceline.air.result import Result
from paceline.testing.invariants import check_run
from paceline.testing.processes import Marks
from paceline.train.torch import TorchConfig
from tests.faults.hanging import Debugger, open_gate_when_sure, shorten
from tests.faults.laboratory import Laboratory

pytestmark = pytest.mark.faults


@pytest.fixture(autouse=True)
def impatient(lab: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)
    open_gate_when_sure(monkeypatch, lab.marks)


def finish(lab: Laboratory, loop: Callable[[dict[str, Any]], None], iterations: int = 2, **settings: Any) -> Result:
    """Train with the default `hang_timeout_s`."""
    result = lab.trainer(loop, backend=TorchConfig(), **settings).fit()
    check_run(result.path, result=result, iterations=iterations, attempts=1)
    assert (lab.marks.directory / "sure.gate").exists(), "the driver has not even looked"
    return result


def work_until_sure(marks: str) -> None:
    gate, total = Path(marks, "sure.gate"), 0
    while not gate.exists():
        total += sum(range(10_000))


def move_until_sure(marks: str) -> None:
    """Sleep, each time at another line."""
    gate, line = Path(marks, "sure.gate"), 0
    while not gate.exists():
        line += 1
        exec(compile("\n" * line + "time.sleep(0.02)", "evaluation.py", "exec"), {"time": time})


@pytest.mark.parametrize("evaluate", [work_until_sure, move_until_sure])
def test_others_wait_in_a_barrier_for_rank_zero_which_is_behind(
    lab: Laboratory, evaluate: Callable[[str], None]
) -> None:
    """B6."""

    def loop(config: dict[str, Any]) -> None:
        import torch.distributed as dist

        session.report({"iteration": 1})
        if session.get_world_rank() == 0:
            evaluate(config["marks"])
        session.report({"iteration": 2})
        dist.barrier()

    finish(lab, loop)


@pytest.mark.parametrize("evaluate", [work_until_sure, move_until_sure])
def test_others_are_behind_while_they_wait_in_a_barrier_for_rank_zero(
    lab: Laboratory, evaluate: Callable[[str], None]
) -> None:
    """B6."""

    def loop(config: dict[str, Any]) -> None:
        import torch.distributed as dist

        session.report({"iteration": 1})
        if session.get_world_rank() == 0:
            session.report({"iteration": 2})
            evaluate(config["marks"])
            dist.barrier()
        else:
            dist.barrier()
            session.report({"iteration": 2})

    finish(lab, loop)


def test_others_wait_in_a_barrier_for_rank_zero_at_the_same_report(lab: Laboratory) -> None:
    """B6: No rank is behind, and rank 0 computes: not even a warning."""

    def loop(config: dict[str, Any]) -> None:
        import torch.distributed as dist

        session.report({"iteration": 1})
        if session.get_world_rank() == 0:
            work_until_sure(config["marks"])
        dist.barrier()
        session.report({"iteration": 2})

    assert not finish(lab, loop).warnings


def test_a_late_first_report(lab: Laboratory) -> None:
    """B6: Nothing is reported yet, one rank has nothing to do, and the other one sleeps."""

    def loop(config: dict[str, Any]) -> None:
        if session.get_world_rank() == 1:
            return
        Marks(config["marks"]).pass_gate("sure")
        session.report({"iteration": 1})

    finish(lab, loop, iterations=1)


def test_the_children_of_a_rank_work_while_it_waits(lab: Laboratory) -> None:
    """B6."""

    def loop(config: dict[str, Any]) -> None:
        from torch.utils.data import DataLoader, Dataset

        class Hard(Dataset):  # type: ignore[type-arg]
            def __len__(self) -> int:
                return 1

            def __getitem__(self, index: int) -> int:
                work_until_sure(config["marks"])
                return index

        session.report({"iteration": 1})
        if session.get_world_rank() == 1:
            list(DataLoader(Hard(), num_workers=1))
        session.report({"iteration": 2})

    finish(lab, loop)


def test_a_checkpoint_that_is_written_slowly(lab: Laboratory) -> None:
    """B6: Its rank is idle between two parts, always at the same line."""

    def loop(config: dict[str, Any]) -> None:
        marks, rank = Marks(config["marks"]), session.get_world_rank()
        session.report({"iteration": 1})
        if rank == 0:
            folder = Path("slow")
            folder.mkdir()
            with open(folder / "weights", "wb", buffering=0) as file:
                while not (marks.directory / "sure.gate").exists():
                    file.write(bytes(1 << 19))
                    time.sleep(0.02)
                    file.seek(0)
            session.report({"iteration": 2}, checkpoint=Checkpoint.from_directory(str(folder)))
        else:
            session.report({"iteration": 2})

    finish(lab, loop)


@pytest.mark.parametrize("stops", [False, True])
def test_a_rank_with_a_debugger_attached(lab: Laboratory, stops: bool) -> None:
    """B6: One that stands still, or that is stopped and gives no sign of life."""

    def loop(config: dict[str, Any]) -> None:
        marks, gate = Marks(config["marks"]), Path(config["marks"], "sure.gate")
        session.report({"iteration": 1})
        if session.get_world_rank() == 1:
            marks.say("here", pid=os.getpid())
            marks.pass_gate("sure")
            session.report({"iteration": 2})
            return
        debugger = Debugger(marks.wait("here")[0]["pid"])
        if stops:
            debugger.stop()
        session.report({"iteration": 2})
        while not gate.exists():
            if not stops:
                debugger.let_run()
            time.sleep(0.01)
        if not stops:
            debugger.stop()
        debugger.detach()

    finish(lab, loop, failure_config=FailureConfig(heartbeat_timeout_s=1.0))
