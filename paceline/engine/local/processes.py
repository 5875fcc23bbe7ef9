"""Finding processes: who descends from whom, and to which worker an orphan belonged."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from paceline.engine.protocol import RUN_ID_VARIABLE

WARDEN_VARIABLE = "PACELINE_WARDEN"
"""In the environment of a warden, and so of everything that is forked from it and not executed."""


def children_of(pid: int) -> list[int]:
    """The direct children of a process, zombies included."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children.extend(int(child) for child in file.read().split())
    except FileNotFoundError:
        if not children and os.path.isdir(f"/proc/{pid}/task"):
            return [child for child, parent in _parents().items() if parent == pid]
    except (OSError, ValueError):
        pass
    return children


def with_descendants(pids: Iterable[int]) -> list[int]:
    """The given processes and everything below them, parents before children."""
    found: list[int] = []
    seen: set[int] = set()
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in seen:
            seen.add(pid)
            found.append(pid)
            waiting.extend(children_of(pid))
    return found


def _parents() -> dict[int, int]:
    """Parent of every process, from the process table: for kernels that do not list children."""
    parents: dict[int, int] = {}
    for pid in _all_processes():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                parents[pid] = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return parents


def _all_processes() -> list[int]:
    """Every process id; none where the system has no /proc."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def run_id_of(pid: int) -> str | None:
    """The run a program was started for. A process that was only forked shows the warden's environment."""
    return _variables_of(pid).get(RUN_ID_VARIABLE)


def _variables_of(pid: int) -> dict[str, str]:
    """The environment a process was executed with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0")]
    except OSError:
        return {}
    return {name: value for name, _, value in entries}


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # Gone already, or a program with rights of its own.
            continue


def kill_remains(sessions: set[int], run_id: str, warden: str) -> int:
    """Kill what workers left behind when their warden is dead; returns how many there were.

    What they started is in a worker's session, or was executed with the run's id, or was
    only forked and then shows the environment of that warden.
    """

    def belongs(pid: int) -> bool:
        if session_of(pid) in sessions:
            return True
        variables = _variables_of(pid)
        return variables.get(RUN_ID_VARIABLE) == run_id or variables.get(WARDEN_VARIABLE) == warden

    others = [pid for pid in _all_processes() if pid != os.getpid()]
    remains = [pid for pid in others if belongs(pid) and not _is_zombie(pid)]
    kill_all(remains)
    return len(remains)


def _is_zombie(pid: int) -> bool:
    return _state_of(pid) in ("Z", "")


def is_stopped(pid: int) -> bool:
    return _state_of(pid) in ("T", "t")


def _state_of(pid: int) -> str:
    """The letter that ps shows; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""
