"""Reads from /proc what the workers of this machine use."""

from __future__ import annotations

import os
from collections.abc import Mapping

from paceline.air.process import stat_of
from paceline.engine.local.processes import with_descendants
from paceline.engine.usage import Usage

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def usage_of(pid: int) -> Usage | None:
    """What a process and everything below it use; None if it has ended, or where there is no /proc.

    Takes about 0.1 ms for each process.
    """
    ticks = memory = private = peak = count = moved = 0
    is_traced = False
    for process in with_descendants([pid]):
        fields, status = stat_of(process), _status_of(process)
        if not fields or not status:
            if process == pid:
                return None
            continue
        count += 1
        ticks += sum(map(int, fields[11:15]))  # Its own, and those of children that it has waited for.
        memory += _kilobytes(status, b"VmRSS")
        private += _kilobytes(status, b"RssAnon") + _kilobytes(status, b"RssShmem")
        moved += _bytes_moved(process)
        is_traced = is_traced or status.get(b"TracerPid", b"0") != b"0"
        if process == pid:
            peak = _kilobytes(status, b"VmHWM")
    return Usage(ticks / _TICKS_PER_S, memory * 1024, peak * 1024, count, moved, is_traced, private * 1024)


def usages_of(pids: Mapping[int, int]) -> dict[int, Usage]:
    """The same for workers of this machine, by rank."""
    found = {rank: usage_of(pid) for rank, pid in pids.items()}
    return {rank: usage for rank, usage in found.items() if usage is not None}


def _bytes_moved(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            read, written = file.read().split()[1:4:2]
    except (OSError, ValueError):  # Gone, or a program with rights of its own.
        return 0
    return int(read) + int(written)


def _status_of(pid: int) -> dict[bytes, bytes]:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}


def _kilobytes(status: Mapping[bytes, bytes], name: bytes) -> int:
    return int(status.get(name, b"0 kB").split()[0])
