"""Which processes a run started: written down, so that the next driver can end what survived the last.

A process is known by its pid, its start time and the boot it belongs to; a pid alone may
meanwhile be somebody else's.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from paceline.storage.files import PRIVATE_FILE_MODE
from paceline.storage.lock import boot_id


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is none, or only its exit status."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])


def _lineage(pid: int) -> set[int]:
    """The process itself, its parent, and so on."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return found


def record(path: Path, attempt: int, processes: Mapping[int, int]) -> None:
    """Add the workers of one attempt (rank to pid)."""
    boot = boot_id()
    lines = [
        json.dumps({"rank": rank, "attempt": attempt, "pid": pid, "start": start_time(pid), "boot": boot})
        for rank, pid in processes.items()
    ]
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    with os.fdopen(descriptor, "a") as file:
        file.write("".join(line + "\n" for line in lines))


def survivors(path: Path) -> list[int]:
    """Recorded processes that still run."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    boot = boot_id()
    alive = []
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):  # the last line of a killed driver may be torn
            entry = json.loads(line)
            started = start_time(entry["pid"])
            if entry["boot"] == boot and started is not None and started == entry["start"]:
                alive.append(entry["pid"])
    return alive


def end_survivors(path: Path) -> list[int]:
    """Kill what an earlier driver of this trial left running. Call it with the run's lock held.

    This process and those that it descends from are spared, whatever the file says.
    """
    own = _lineage(os.getpid())
    alive = [pid for pid in survivors(path) if pid not in own]
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    path.unlink(missing_ok=True)
    return alive
