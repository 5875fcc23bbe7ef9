"""Which process this is: among all that the machine has and had, and in a run; and where a test can make it fail.

Process ids are used again, and mean nothing on another machine.

Fault points are named places. ``PACELINE_FAULT="after_stage_manifest:rank=0:attempt=0:SIGKILL"`` kills rank 0's
process at that point of its first attempt; several faults are separated by ``;``. Conditions are optional; ``times=n``
fires at the n-th passing (1 by default). Actions: a signal name (``SIGKILL``), ``exit=3``, ``raise=OSError``, or
``stop`` (SIGSTOP), always applied to the process that passes the point.
"""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

_own_pid = os.getpid()


def own_pid() -> int:
    """This process's id, without asking the system: for what happens with every message."""
    return _own_pid


def _note_own_pid() -> None:
    global _own_pid
    _own_pid = os.getpid()


os.register_at_fork(after_in_child=_note_own_pid)


@functools.cache
def boot_id() -> str:
    """Changes with every boot of this machine; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_namespace(pid: int | str = "self") -> str:
    """Names the namespace, such as a container's, in which process ids mean the same; empty if it cannot be seen."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none, or only its exit status."""
    fields = stat_of(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the command, which may hold anything; none if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


# -- fault points

FAULT_VARIABLE = "PACELINE_FAULT"
role: dict[str, str] = {"rank": "driver", "attempt": "0"}
"""What this process is in a run; the worker's start-up and the driver's attempts fill it in."""

_passed: dict[str, int] = {}


def fault_point(name: str) -> None:
    """Fire the fault configured for this place, if there is one."""
    spec = os.environ.get(FAULT_VARIABLE)
    if not spec:
        return
    for entry in spec.split(";"):
        place, *conditions, action = entry.split(":")
        if place == name and _matches(entry, conditions):
            _fire(action)


def _matches(entry: str, conditions: list[str]) -> bool:
    wanted = dict(condition.split("=", 1) for condition in conditions)
    times = int(wanted.pop("times", "1"))
    if any(role.get(key) != value for key, value in wanted.items()):
        return False
    _passed[entry] = _passed.get(entry, 0) + 1
    return _passed[entry] == times


def _fire(action: str) -> None:
    verb, _, value = action.partition("=")
    if verb == "exit":
        os._exit(int(value))
    elif verb == "raise":
        raise {"OSError": OSError, "RuntimeError": RuntimeError}[value](f"injected by {FAULT_VARIABLE}")
    else:
        os.kill(os.getpid(), getattr(signal, verb if verb.startswith("SIG") else "SIGSTOP"))
