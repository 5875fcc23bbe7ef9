"""How each rank of a run did lately, from the end of its journal."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from msgspec import Struct, field

from paceline.air.errors import RestoreError, StorageError
from paceline.run.records import FORMAT, AttemptStarted, RanksUsed, RankUse, Record, Row
from paceline.run.timing import StepTimes, sum_of
from paceline.storage.journal import last_records

_ROWS = 20


class RecentRank(Struct):
    """One rank of the last attempt."""

    rows: list[Row] = field(default_factory=list)
    """Its last ones, as far as they are near the end of the journal."""
    use: RankUse | None = None
    """What was measured last."""

    @property
    def last_index(self) -> int | None:
        return max((row.index for row in self.rows), default=None)

    @property
    def last_report(self) -> float | None:
        """When it was, in seconds since the epoch."""
        return max((row.stamp for row in self.rows), default=None)

    @property
    def rate(self) -> float | None:
        """Reports per second. Time since the last one counts once it is longer than usual, so a rank that hangs tends
        to zero."""
        if len(self.rows) < 2:
            return None
        span = max(self.rows[-1].stamp - self.rows[0].stamp, time.time() - self.rows[-1].stamp)
        return (len(self.rows) - 1) / span if span > 0 else None

    @property
    def usual_gap_s(self) -> float | None:
        """Between two of these reports."""
        gaps = [after.stamp - before.stamp for before, after in pairwise(self.rows)]
        return statistics.median(gaps) if gaps else None

    @property
    def times(self) -> StepTimes | None:
        """Of the steps of these rows; None if nothing was measured."""
        measured = [row.times for row in self.rows if row.times is not None and row.times.steps]
        return functools.reduce(sum_of, measured) if measured else None


def recent_ranks(journal: Path) -> dict[int, RecentRank]:
    """By rank; empty if the journal cannot be read."""
    try:
        return _ranks_in([FORMAT.decode(body, journal) for body in last_records(journal)])
    except (RestoreError, StorageError):
        return {}


def _ranks_in(records: Iterable[Record | None]) -> dict[int, RecentRank]:
    ranks: dict[int, RecentRank] = {}
    attempt = 0
    for record in records:
        if not isinstance(record, Row | RanksUsed | AttemptStarted):
            continue
        if record.attempt != attempt:
            attempt = record.attempt
            ranks.clear()
        if isinstance(record, Row):
            ranks.setdefault(record.rank, RecentRank()).rows.append(record)
        elif isinstance(record, RanksUsed):
            for use in record.ranks:
                ranks.setdefault(use.rank, RecentRank()).use = use
    for rank in ranks.values():
        del rank.rows[:-_ROWS]
    return dict(sorted(ranks.items()))
