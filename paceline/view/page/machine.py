"""What the ranks of live runs take of this machine, measured at most once a second however many tabs ask."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from msgspec import Struct

from paceline.run.records import FORMAT, Row
from paceline.storage.journal import last_records
from paceline.storage.run_dir import RunDir, resolve_storage
from paceline.view.live import LiveRun, live_runs, local_directory

_EVERY_SECONDS = 1.0
_FORGET_SECONDS = 10.0
"""The use of a core is measured between two looks; they must not be further apart than that."""


class RankUsage(Struct):
    """One rank of a live run."""

    rank: int
    host: str
    processes: int
    cpu: float | None
    """Percent of a core since the last look; None at the first."""
    memory: int
    step_rate: float | None
    """Reports per second, lately."""
    last_index: int | None
    state: str


class Machine:
    """Looks at the processes of live runs. It may be used from several threads."""

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname
        self._lock = threading.Lock()
        self._looked = 0.0
        self._runs: dict[str, LiveRun] = {}
        self._before: dict[str, LiveRun] = {}

    def ranks(self, place: str) -> list[RankUsage]:
        """The ranks of a run that a driver of this machine is at work on; empty for others."""
        directory = place if not isinstance(resolve_storage(place), str) else local_directory(place)
        if directory is None:
            return []
        directory = os.path.realpath(directory)
        with self._lock:
            if time.monotonic() - self._looked > _EVERY_SECONDS:
                self._look()
            run, before = self._runs.get(directory), self._before.get(directory)
        if run is None:
            return []
        reports = _recent_reports(directory)
        return [
            RankUsage(
                rank=rank,
                host=self._hostname,
                processes=usage.processes,
                cpu=_share(run, before, rank),
                memory=usage.memory,
                step_rate=_rate(reports.get(rank, [])),
                last_index=max((row.index for row in reports.get(rank, [])), default=None),
                state=run.summary.status,
            )
            for rank, usage in run.ranks.items()
        ]

    def _look(self) -> None:
        now = time.monotonic()
        self._before = self._runs if now - self._looked < _FORGET_SECONDS else {}
        self._runs = {os.path.realpath(run.summary.path): run for run in live_runs()}
        self._looked = time.monotonic()


def _share(run: LiveRun, before: LiveRun | None, rank: int) -> float | None:
    if before is None or rank not in before.ranks or run.seen <= before.seen:
        return None
    spent = run.ranks[rank].cpu_s - before.ranks[rank].cpu_s
    return max(100 * spent / (run.seen - before.seen), 0.0)


def _recent_reports(directory: str) -> dict[int, list[Row]]:
    """The last rows of each rank's last attempt, as far as they are near the journal's end."""
    reports: dict[int, list[Row]] = {}
    journal = RunDir(Path(directory)).journal
    for body in last_records(journal):
        record = FORMAT.decode(body, journal)
        if isinstance(record, Row):
            rows = reports.setdefault(record.rank, [])
            if rows and rows[-1].attempt != record.attempt:
                rows.clear()
            rows.append(record)
    return {rank: rows[-20:] for rank, rows in reports.items()}


def _rate(rows: list[Row]) -> float | None:
    """Reports per second. The time since the last one counts once it is longer than usual: who hangs has no rate."""
    if len(rows) < 2:
        return None
    span = max(rows[-1].stamp - rows[0].stamp, time.time() - rows[-1].stamp)
    return (len(rows) - 1) / span if span > 0 else None
