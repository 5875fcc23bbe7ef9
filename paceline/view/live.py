"""The live runs of this machine: how fast they report, and what each rank takes of the machine.

Drivers say which runs they drive (engine/local/drivers.py). Which processes belong to a rank is seen from outside: a
worker writes to the log of its rank, and so does everything that it starts. Nothing is asked of anybody.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from msgspec import Struct, field

from paceline.air.errors import RestoreError, StorageError
from paceline.air.process import stat_of
from paceline.engine.local import drivers
from paceline.engine.local.processes import marked_by
from paceline.run.found_runs import RunSummary, place_of, summary_of_run_dir
from paceline.run.records import FORMAT, Row
from paceline.storage.run_dir import SEARCH_JOURNALS, RunDir
from paceline.storage.twin import read_origin

_ROWS_FOR_RATE = 20
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PARENT, _USER_TICKS, _SYSTEM_TICKS, _RESIDENT = 1, 11, 12, 21
"""Places in what `stat_of` gives: /proc/<pid>/stat behind the name of the program."""


class Usage(Struct):
    """What some processes take of the machine."""

    processes: int = 0
    memory: int = 0
    """Bytes; what several processes share is counted in parts."""
    cpu_s: float = 0.0
    """Seconds of a core, since they started."""

    def add(self, other: Usage) -> None:
        self.processes += other.processes
        self.memory += other.memory
        self.cpu_s += other.cpu_s


class LiveRun(Struct, kw_only=True):
    """A run that a driver of this machine is at work on."""

    summary: RunSummary
    driver: int
    """The driver's process id."""
    rate: float | None
    """Reports per second, lately."""
    ranks: dict[int, Usage] = field(default_factory=dict)
    """By rank; empty if the workers are on other machines."""
    seen: float = 0.0
    """By the monotonic clock: when the processes were looked at."""

    @property
    def usage(self) -> Usage:
        """Of all ranks together."""
        total = Usage()
        for each in self.ranks.values():
            total.add(each)
        return total


def live_runs() -> list[LiveRun]:
    """The runs of this user's live drivers, by start and path. Trials of a search are runs, too."""
    found: list[LiveRun] = []
    for driver in drivers.live_drivers():
        if not driver.is_here:  # its process ids mean others to us
            continue
        ranks = _ranks_of(marked_by(driver.identity))
        for _, directory in driver.runs:
            run_dir = RunDir(Path(directory))
            try:
                summary = summary_of_run_dir(run_dir)
            except (RestoreError, StorageError):  # it has just begun, or ended
                continue
            if summary.alive:
                own = {rank: usage for (folder, rank), usage in ranks.items() if folder == str(run_dir.logs_dir)}
                found.append(
                    LiveRun(
                        summary=summary,
                        driver=driver.pid,
                        rate=recent_rate(run_dir.journal),
                        ranks=dict(sorted(own.items())),
                        seen=time.monotonic(),
                    )
                )
    return sorted(found, key=lambda each: (each.summary.started, each.summary.path))


def recent_rate(journal: Path) -> float | None:
    """Reports per second, from the last rows of rank 0; None before the second one."""
    rows = (row for row in FORMAT.backwards(journal, b'"rank":0,') if isinstance(row, Row) and row.rank == 0)
    try:
        last = list(islice(rows, _ROWS_FOR_RATE))
    except (OSError, RestoreError):
        return None
    last = [row for row in last if row.attempt == last[0].attempt]
    if len(last) < 2:
        return None
    # The time since the last report counts once it is longer than usual: a run that hangs has no rate.
    span = max(last[0].stamp - last[-1].stamp, time.time() - last[0].stamp)
    return (len(last) - 1) / span if span > 0 else None


def local_directory(uri: str) -> str | None:
    """Where a live driver of this machine keeps the run or search that is mirrored to a URI; None if none does."""
    for driver in drivers.live_drivers():
        for _, directory in driver.runs:
            if place_of(RunDir(Path(directory))) == uri:
                return directory
            search = Path(directory).parent
            if any(read_origin(journal.with_suffix(".origin")) == uri for journal in search.glob(SEARCH_JOURNALS)):
                return str(search)
    return None


def _ranks_of(pids: Iterable[int]) -> dict[tuple[str, int], Usage]:
    """(folder of logs, rank) -> what the processes of that rank take."""
    known = set(pids)
    parents = {pid: int(stat[_PARENT]) for pid in known if (stat := stat_of(pid))}
    own = {pid: rank for pid in parents if (rank := _rank_of(pid)) is not None}
    found: dict[tuple[str, int], Usage] = {}
    for pid in parents:
        nearest: int | None = pid
        while nearest is not None and nearest not in own:  # a child whose output goes elsewhere
            nearest = parents.get(nearest)
        if nearest is not None and (usage := _usage_of(pid)) is not None:
            found.setdefault(own[nearest], Usage()).add(usage)
    return found


def _rank_of(pid: int) -> tuple[str, int] | None:
    """The log that a process writes its output to says whose it is."""
    try:
        folder, name = os.path.split(os.readlink(f"/proc/{pid}/fd/1"))
    except OSError:
        return None
    rank = name.removeprefix("rank_").removesuffix(".log")
    is_log = name == f"rank_{rank}.log" and rank.isdecimal() and os.path.basename(folder) == "logs"
    return (folder, int(rank)) if is_log else None


def _usage_of(pid: int) -> Usage | None:
    stat = stat_of(pid)
    if not stat:
        return None
    cpu_s = (int(stat[_USER_TICKS]) + int(stat[_SYSTEM_TICKS])) / _TICKS
    memory = _proportional_memory(pid)
    return Usage(1, memory if memory is not None else int(stat[_RESIDENT]) * _PAGE, cpu_s)


def _proportional_memory(pid: int) -> int | None:
    """Workers are forks of one process and share most of their memory, which should be counted once."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("Pss:")), None)
    except (OSError, ValueError):
        return None
