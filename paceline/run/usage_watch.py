"""What the ranks of an attempt use of their machines, asked now and then: processor time and memory.

Memory is looked at more often than it is written down, so that a peak, or growth without an end, is seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from paceline.air.errors import WorkerFailure
from paceline.engine.failures import with_memory_advice
from paceline.engine.usage import Usage
from paceline.run.memory_growth import MemoryGrowth
from paceline.run.records import RanksUsed, RankUse

FIRST_S = 2.0
"""How long an attempt lasts before it is worth a record."""
EVERY_S = 10.0
LONGEST_S = 60.0
"""Between two records of a run that has lasted for an hour: its journal must not grow by what nobody reads."""
SAMPLE_S = 1.0
"""Between two looks at first; later a 25th of the time that the attempt has lasted."""
LEAST_PAUSE = 200
"""Looking takes at most that part of the driver's time, however many processes there are."""


class UsageWatch:
    """Cheap enough to be asked at every step of the driver; only sometimes it asks the engine."""

    def __init__(self, attempt: int) -> None:
        self.newest: dict[int, RankUse] = {}
        """What is known last, by rank."""
        self._attempt = attempt
        self._began = self._seen = time.monotonic()
        self._next_look = self._next_record = self._began
        self._before: Mapping[int, Usage] = {}
        """As of the last record."""
        self._last: Mapping[int, Usage] = {}
        """As of the last look that found any."""
        self._start: dict[int, int] = {}
        self._peak: dict[int, int] = {}
        self._growth = MemoryGrowth()
        self._warnings: list[str] = []

    def look(self, ask: Callable[[], Mapping[int, Usage]], reports: Sequence[int] = ()) -> RanksUsed | None:
        """What to write down, if it is time for that. The share of a core is known from the second look on.

        `reports` says how far each rank is.
        """
        now = time.monotonic()
        if now < self._next_look:
            return None
        usages = ask()
        self._take_in(now, usages, reports)
        found = self._record(now, usages) if now >= self._next_record else None
        pause = max(SAMPLE_S, min(LONGEST_S, (now - self._began) / 25))
        took = time.monotonic() - now
        self._next_look = now + max(min(pause, self._next_record - now), LEAST_PAUSE * took)
        return found

    def last_record(self) -> RanksUsed | None:
        """The attempt is over: what was seen since the last record."""
        is_news = self._last is not self._before
        return self._record(time.monotonic(), self._last) if is_news else None

    def take_warnings(self) -> list[str]:
        """What the user should know of the memory of ranks, and was not told yet."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def explained(self, failure: WorkerFailure) -> WorkerFailure:
        """The failure, with what is known of how the rank came to run out of memory, if it did."""
        growth = self._growth.of_failed(failure.rank)
        return failure if growth is None else with_memory_advice(failure, growth.as_cause)

    def _take_in(self, now: float, usages: Mapping[int, Usage], reports: Sequence[int]) -> None:
        if usages:
            self._last = usages
        for rank, usage in usages.items():
            self._start.setdefault(rank, usage.memory_bytes)
            self._peak[rank] = max(self._peak.get(rank, 0), usage.memory_bytes, usage.peak_bytes)
        self._warnings += [growth.in_words for growth in self._growth.sampled(now, usages, reports)]

    def _record(self, now: float, usages: Mapping[int, Usage]) -> RanksUsed | None:
        before, seconds = self._before, now - self._seen
        self._before, self._seen = usages, now
        lasted = now - self._began
        self._next_record = now + (FIRST_S if lasted < FIRST_S else min(LONGEST_S, max(EVERY_S, lasted / 60)))
        if not before or not usages:
            return None
        self.newest = {
            rank: RankUse(
                rank,
                _cores(usage, before.get(rank), seconds),
                usage.memory_bytes,
                usage.processes,
                self._start[rank],
                self._peak[rank],
            )
            for rank, usage in sorted(usages.items())
        }
        return RanksUsed(attempt=self._attempt, time=time.time(), ranks=list(self.newest.values()))


def _cores(usage: Usage, before: Usage | None, seconds: float) -> float:
    """Less than before, if a process has ended that nobody waited for: then nothing is known."""
    spent = usage.cpu_s - (before.cpu_s if before is not None else usage.cpu_s)
    return round(max(0.0, spent) / seconds, 3) if seconds > 0 else 0.0
