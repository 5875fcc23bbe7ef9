"""What the ranks of an attempt use of their machines, asked now and then: processor time and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from paceline.engine.usage import Usage
from paceline.run.records import RanksUsed, RankUse

FIRST_S = 2.0
"""How long an attempt lasts before it is worth a record."""
EVERY_S = 10.0
LONGEST_S = 60.0
"""Between two records of a run that has lasted for an hour: its journal must not grow by what nobody reads."""


class UsageWatch:
    """Cheap enough to be asked at every step of the driver; only sometimes it asks the engine."""

    def __init__(self, attempt: int) -> None:
        self.newest: dict[int, RankUse] = {}
        """What is known last, by rank."""
        self._attempt = attempt
        self._began = self._seen = time.monotonic()
        self._next = self._began
        self._before: Mapping[int, Usage] = {}

    def look(self, ask: Callable[[], Mapping[int, Usage]]) -> RanksUsed | None:
        """What to write down, if it is time for that. The share of a core is known from the second look on."""
        now = time.monotonic()
        if now < self._next:
            return None
        usages = ask()
        before, seconds = self._before, now - self._seen
        self._before, self._seen = usages, now
        lasted = now - self._began
        self._next = now + (FIRST_S if lasted < FIRST_S else min(LONGEST_S, max(EVERY_S, lasted / 60)))
        if not before or not usages:
            return None
        self.newest = {
            rank: RankUse(rank, _cores(usage, before.get(rank), seconds), usage.memory_bytes, usage.processes)
            for rank, usage in sorted(usages.items())
        }
        return RanksUsed(attempt=self._attempt, time=time.time(), ranks=list(self.newest.values()))


def _cores(usage: Usage, before: Usage | None, seconds: float) -> float:
    """Less than before, if a process has ended that nobody waited for: then nothing is known."""
    spent = usage.cpu_s - (before.cpu_s if before is not None else usage.cpu_s)
    return round(max(0.0, spent) / seconds, 3) if seconds > 0 else 0.0
