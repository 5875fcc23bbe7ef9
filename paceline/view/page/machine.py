"""The ranks of a run: how their steps went lately, and what those of live runs take of this machine.

The machine is looked at once a second at the most, however many tabs ask.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from msgspec import Struct

from paceline.storage.run_dir import RunDir, resolve_storage
from paceline.view.live import LiveRun, live_runs, local_directory
from paceline.view.recent_ranks import RecentRank, recent_ranks

_EVERY_SECONDS = 1.0
_FORGET_SECONDS = 10.0
"""The use of a core is measured between two looks; they must not be further apart than that."""


class RankUsage(Struct, kw_only=True):
    """One rank of a run, as it did lately. What is not known is None."""

    rank: int
    host: str | None = None
    processes: int | None = None
    cpu: float | None = None
    """Percent of a core since the last look; None at the first."""
    memory: int | None = None
    step_rate: float | None = None
    """Reports per second, lately."""
    step_time: float | None = None
    """Seconds per step, as all that follow."""
    data_wait: float | None = None
    report_wait: float | None = None
    checkpoint_wait: float | None = None
    collective_wait: float | None = None
    last_index: int | None = None
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
        """The ranks of a run whose files are on this machine; empty for others."""
        directory = place if not isinstance(resolve_storage(place), str) else local_directory(place)
        if directory is None:
            return []
        directory = os.path.realpath(directory)
        with self._lock:
            if time.monotonic() - self._looked > _EVERY_SECONDS:
                self._look()
            run, before = self._runs.get(directory), self._before.get(directory)
        recent = recent_ranks(RunDir(Path(directory)).journal)
        if run is None:
            return [_known(rank, lately, "ended") for rank, lately in recent.items()]
        ranks = sorted({*run.ranks, *recent})
        return [self._live(run, before, rank, recent.get(rank, RecentRank())) for rank in ranks]

    def _live(self, run: LiveRun, before: LiveRun | None, rank: int, lately: RecentRank) -> RankUsage:
        """Of ranks on other machines the run itself knows what they use."""
        found = _known(rank, lately, run.summary.status)
        if (seen := run.ranks.get(rank)) is not None:
            found.host, found.processes, found.memory = self._hostname, seen.processes, seen.memory
            found.cpu = _share(run, before, rank)
        elif (used := lately.use) is not None:
            found.processes, found.memory, found.cpu = used.processes, used.memory, 100 * used.cpu
        found.step_rate = lately.rate
        return found

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


def _known(rank: int, lately: RecentRank, state: str) -> RankUsage:
    """What the journal says of its last steps."""
    found = RankUsage(rank=rank, last_index=lately.last_index, state=state)
    if (times := lately.times) is not None:
        found.step_time, found.data_wait, found.report_wait, found.checkpoint_wait, _ = times.per_step().values()
        found.collective_wait = times.collective_s
    return found
