"""B6 with the settings that everybody has: nothing is shortened here, so each case takes as long as its fault."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, FailureConfig, session
from paceline.testing import chaos
from paceline.testing.invariants import check_run, journal_records
from paceline.testing.processes import Marks
from paceline.train.torch import TorchConfig
from tests.faults.hanging import Debugger
from tests.faults.laboratory import Laboratory

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

LONG_S = 120.0
STOP_S = 45.0


def finish(lab: Laboratory, loop: Callable[[dict[str, Any]], None], at_least_s: float) -> None:
    """Train without any retry: a rank that is killed fails the run."""
    defaults = FailureConfig()
    assert (defaults.hang_timeout_s, defaults.heartbeat_timeout_s, defaults.max_failures) == ("auto", 30, 0)
    began = time.monotonic()
    result = lab.trainer(loop, backend=TorchConfig()).fit()
    assert time.monotonic() - began >= at_least_s, "nothing was slow"
    check_run(result.path, result=result, iterations=2, attempts=1)
    assert [record for record in journal_records(Path(result.path)) if record["kind"] == "failure"] == []


def test_a_checkpoint_takes_two_minutes_to_write(lab: Laboratory) -> None:
    """B6: rank 0 writes it, idle at one line between two parts; rank 1 waits for it in a barrier."""

    def loop(config: dict[str, Any]) -> None:
        import torch.distributed as dist

        session.report({"iteration": 1})
        if session.get_world_rank() == 0:
            folder, end = Path("slow"), time.monotonic() + LONG_S
            folder.mkdir()
            with open(folder / "weights", "wb", buffering=0) as file:
                while time.monotonic() < end:
                    file.write(bytes(1 << 12))
                    time.sleep(0.5)
            dist.barrier()
            session.report({"iteration": 2}, checkpoint=Checkpoint.from_directory(str(folder)))
        else:
            dist.barrier()
            session.report({"iteration": 2})

    finish(lab, loop, LONG_S)


def test_report_takes_two_minutes_to_store_a_checkpoint(lab: Laboratory) -> None:
    """B6: the storage is slow, and rank 1 waits for rank 0 in a barrier meanwhile."""

    def loop(config: dict[str, Any]) -> None:
        import torch.distributed as dist

        session.report({"iteration": 1})
        rank, state = session.get_world_rank(), {"step": 2, "weights": bytes(int(LONG_S) * 10_000)}
        session.report({"iteration": 2}, checkpoint=None if rank else Checkpoint.from_dict(state))
        dist.barrier()

    with chaos(slow_storage={"bytes_per_second": 10_000}):
        finish(lab, loop, LONG_S)


def test_a_debugger_stops_a_rank_for_longer_than_the_heartbeat_timeout(lab: Laboratory) -> None:
    """B6: the stopped process gives no sign of life, and the other rank waits for it in a barrier."""

    def loop(config: dict[str, Any]) -> None:
        import torch.distributed as dist

        marks = Marks(config["marks"])
        session.report({"iteration": 1})
        if session.get_world_rank() == 1:
            marks.say("here", pid=os.getpid())
            marks.pass_gate("stopped")
        else:
            debugger = Debugger(marks.wait("here")[0]["pid"])
            debugger.stop()
            marks.open_gate("stopped")
            time.sleep(STOP_S)  # the stop is the fault itself
            debugger.detach()
        dist.barrier()
        session.report({"iteration": 2})

    finish(lab, loop, STOP_S)
