"""What the contract tests of engines share: placements, tasks, events, and what an engine says of itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.base import (
    Engine,
    Event,
    Message,
    Placement,
    TaskFailed,
    WorkerChannel,
    WorkerGroup,
    WorkerRequest,
)
from paceline.engine.serialization import dumps

PATIENCE_S = 60.0
"""A guard against hanging; nothing here is expected to take long."""
PROMPT_S = 20.0
"""Far more than anything needs that does not wait for the end of a time-out."""
SECOND_NS = 1_000_000_000


def placement_in(folder: Path, workers: int, **settings: Any) -> Placement:
    """A placement whose workers live below `folder`."""
    env = settings.pop("env", {})
    places = tuple(
        WorkerRequest(rank, str(folder / f"rank_{rank}"), str(folder / "logs" / f"rank_{rank}.log"), env)
        for rank in range(workers)
    )
    run_id = settings.pop("run_id", f"test-{folder.name}")
    return Placement(run_id=run_id, workers=places, directory=str(folder), **settings)


def run_task(group: WorkerGroup, task: Callable[[WorkerChannel, bytes], None], *arguments: bytes) -> None:
    """Start the same task on every rank."""
    group.start(dumps(task, "task"), list(arguments) or [b""] * group.world_size)


def collect(group: WorkerGroup, until: Callable[[list[Event]], bool], patience_s: float = PATIENCE_S) -> list[Event]:
    """Poll until the events seen so far satisfy the condition."""
    events: list[Event] = []
    deadline = time.monotonic() + patience_s
    while not until(events):
        assert time.monotonic() < deadline, f"waited too long; saw {[type(event).__name__ for event in events]}"
        events.extend(group.poll(1.0))
    return events


def collect_to_end(group: WorkerGroup) -> list[Event]:
    """Everything up to the end of the task on every rank, however it ended."""

    def over(events: list[Event]) -> bool:
        return len({event.rank for event in events if not isinstance(event, Message)}) == group.world_size

    return collect(group, over)


def bodies_of(events: list[Event], rank: int = 0) -> list[bytes]:
    return [event.body for event in events if isinstance(event, Message) and event.rank == rank]


def files_in_memory() -> int:
    """How many attachments this process holds, or has mapped, as far as the system tells."""
    maps = Path("/proc/self/maps")
    mapped = maps.read_text().count("paceline-attachment") if maps.exists() else 0
    descriptors = Path("/proc/self/fd")
    targets = [_target(entry) for entry in descriptors.iterdir()] if descriptors.exists() else []
    return mapped + sum("paceline-attachment" in target for target in targets)


def fork_child() -> int:
    """A child of this worker that holds all it has open, and never ends by itself."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


def running(pids: list[int]) -> list[int]:
    """Those of the processes that run here; one that has ended may not have been waited for."""
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}") and not _is_dead(pid)]


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:  # The one that listed the directory.
        return ""


def failure_of(events: list[Event]) -> Any:
    return next(event.failure for event in events if isinstance(event, TaskFailed))


class EngineTests:
    """What engines are asked before a test; subclasses supply the `engine` fixture."""

    max_workers = 1
    isolated = True
    """False if a worker shares the driver's process: then it cannot die alone."""
    has_heartbeat = True
    """False if a worker that is stopped, or hangs in C code, is waited for without a limit."""
    ends_detached = True
    """False if processes that a worker has started in a session of their own outlive the group."""

    shows_usage = True
    """False if `WorkerGroup.usage` returns nothing: then `hang_timeout_s="auto"` only warns."""

    @pytest.fixture
    def group(self, engine: Engine, tmp_path: Path) -> Iterator[WorkerGroup]:
        group = engine.start_group(placement_in(tmp_path, self.max_workers))
        yield group
        group.shutdown()

    def _needs_processes(self) -> None:
        if not self.isolated:
            pytest.skip("the worker shares the driver's process")
