"""Which process this is: among all that the machine has and had, and in a run.

Process ids are used again, and mean nothing on another machine.
"""

from __future__ import annotations

import functools
import os
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
