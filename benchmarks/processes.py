"""Looking at process trees from outside: who belongs to a script, what they weigh, when they are gone."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def parents() -> dict[int, int]:
    """Every live process and its parent; zombies have ended and do not count."""
    found: dict[int, int] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            state, parent = (entry / "stat").read_text().rsplit(") ", 1)[1].split()[:2]
            if state not in "ZX":
                found[int(entry.name)] = int(parent)
    return found


def tree(root: int) -> list[int]:
    """`root` and everything that descends from it."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    members = [root]
    for pid in members:
        members += children.get(pid, [])
    return members


def marked(mark: str) -> list[int]:
    """Live processes that were started with `mark` in their environment or command line."""
    needle = mark.encode()
    found = []
    for pid in parents():
        with suppress(OSError):
            folder = PROC / str(pid)
            if needle in (folder / "environ").read_bytes() or needle in (folder / "cmdline").read_bytes():
                found.append(pid)
    return found


def proportional_mb(pids: Iterable[int]) -> float:
    """Sum of the proportional set sizes: shared pages are counted once over all who share them."""
    kilobytes = 0
    for pid in pids:
        with suppress(OSError):
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
            kilobytes += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


def resident_mb(pid: int | None = None) -> float:
    """The resident set of one process; of this one unless told otherwise."""
    pages = int((PROC / str(pid or os.getpid()) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_mb() -> float:
    """The largest resident set that this process has had since it began, or since `forget_peak`."""
    lines = (PROC / "self" / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def forget_peak() -> None:
    """Let `peak_mb` begin anew with what is resident now."""
    (PROC / "self" / "clear_refs").write_text("5")


def kill_and_time(root: int, members: Iterable[int], patience: float) -> tuple[float, list[int]]:
    """SIGKILL `root`; seconds until all `members` have ended, and those that outlived `patience`.

    Process descriptors tell the moment of each end exactly and cannot be fooled by a reused id.
    """
    watched: dict[int, int] = {}
    for pid in members:
        with suppress(ProcessLookupError):
            watched[os.pidfd_open(pid)] = pid
    poller = select.poll()
    for descriptor in watched:
        poller.register(descriptor, select.POLLIN)
    started = time.monotonic()
    os.kill(root, signal.SIGKILL)
    last = started
    try:
        while watched and (left := started + patience - time.monotonic()) > 0:
            for descriptor, _ in poller.poll(left * 1000):
                last = time.monotonic()
                poller.unregister(descriptor)
                os.close(descriptor)
                del watched[descriptor]
        return last - started, list(watched.values())
    finally:
        for descriptor in watched:
            os.close(descriptor)


def kill_marked(mark: str) -> int:
    """End whatever a script left behind; returns how many there were."""
    ended = 0
    while pids := [pid for pid in marked(mark) if pid != os.getpid()]:
        ended += len(pids)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return ended
