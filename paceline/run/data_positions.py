"""Where every rank was in its datasets at a report: gathered before the checkpoint of that report is committed.

A checkpoint that tells how far each rank has read is worth something only if all ranks have said so. They are waited
for; a rank that does not report at all (some leave reporting to rank 0) is taken to be where rank 0 is after a while,
because waiting for ever would hang the run. That while is spent once in an attempt, not at every checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from paceline.data.ingest.prepared import RankState, merge_states

SILENT_WAIT_S = 10.0
"""For ranks that have never reported in this attempt."""
LATE_WAIT_S = 120.0
"""For ranks that have, and are behind."""


class DataPositions:
    """Positions by report and rank, as far as they are needed."""

    def __init__(self, world_size: int, start_index: int, split: Mapping[str, bool]) -> None:
        self._world_size = world_size
        self._split = split
        self._last = [start_index] * world_size
        self._start = start_index
        self._finished: set[int] = set()
        self._by_index: dict[int, dict[int, RankState]] = {}
        self._wanted: dict[int, float] = {}
        """Reports whose checkpoint waits for positions, and since when."""
        self._first_wanted: float | None = None
        self._warned_of: set[int] = set()

    def note(self, rank: int, index: int, state: RankState | None, *, with_checkpoint: bool) -> None:
        """A rank has reported. Kept only if the checkpoint of this report, or of a later one of rank 0, may need it."""
        self._last[rank] = index
        if rank == 0:
            if with_checkpoint:
                self._wanted[index] = now = time.monotonic()
                self._first_wanted = self._first_wanted or now
            for known in [known for known in self._by_index if known <= index and known not in self._wanted]:
                del self._by_index[known]
        if state is not None and (index > self._last[0] or index in self._wanted):
            self._by_index.setdefault(index, {})[rank] = state

    def finish(self, rank: int) -> None:
        """A rank's function has returned: it will not report any more."""
        self._finished.add(rank)

    def missing(self, index: int) -> list[int]:
        """Ranks whose position at this report is not known yet."""
        return [rank for rank in range(self._world_size) if self._last[rank] < index]

    def complete(self, index: int) -> bool:
        """Whether there is nobody (left) to wait for."""
        missing = [rank for rank in self.missing(index) if rank not in self._finished]
        if not missing:
            return True
        now = time.monotonic()
        if all(self._last[rank] == self._start for rank in missing):
            return now - (self._first_wanted or now) >= SILENT_WAIT_S
        return now - self._wanted.get(index, now) >= LATE_WAIT_S

    def warnings(self, index: int) -> list[str]:
        """About ranks that did not reach this report; once, not for each checkpoint."""
        missing = self.missing(index)
        if self._warned_of.issuperset(missing):
            return []
        self._warned_of.update(missing)
        return [
            f"Rank(s) {', '.join(map(str, missing))} did not reach report {index}, which has a checkpoint: their place "
            "in the datasets is taken to be that of rank 0. Call report() on every rank."
        ]

    def take(self, index: int) -> dict[str, Any]:
        """What is stored with the checkpoint of this report."""
        known = self._by_index.pop(index, {})
        self._wanted.pop(index, None)
        return merge_states([known.get(rank) for rank in range(self._world_size)], self._split)
