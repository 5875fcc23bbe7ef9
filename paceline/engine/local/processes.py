"""Finding processes: who descends from whom, and to which worker an orphan belonged."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable

from paceline.engine.protocol import RUN_ID_VARIABLE


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
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    return parents


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def run_id_of(pid: int) -> str | None:
    """The run a program was started for; only programs that were exec'ed show it."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for entry in file.read().split(b"\0"):
                name, _, value = entry.partition(b"=")
                if name == RUN_ID_VARIABLE.encode():
                    return os.fsdecode(value)
    except OSError:
        pass
    return None


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # Gone already, or a program with rights of its own.
            continue


def kill_remains(sessions: set[int], run_id: str) -> int:
    """Kill what dead workers left behind when no warden is there to do it; returns how many it found."""

    def belongs(pid: int) -> bool:
        return session_of(pid) in sessions or run_id_of(pid) == run_id

    return _kill_where(belongs)


def _kill_where(belongs: Callable[[int], bool]) -> int:
    own = os.getpid()
    victims = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]
    victims = [pid for pid in victims if belongs(pid)]
    kill_all(victims)
    return len(victims)
