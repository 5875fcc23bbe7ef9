"""What one rank reported last: of a failed run, the rank that caused it, which need not be rank 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from paceline.run.records import FORMAT, ROW, AttemptFailed, Row
from paceline.storage.journal import body_of
from paceline.storage.record_format import beginning_of

_NEAR_THE_END = 1 << 20
"""Bytes. A rank that has failed reported shortly before, and a journal may have millions of rows."""


class LastReport(Struct):
    """The last row of a rank."""

    rank: int
    iteration: int
    metrics: dict[str, Any]


def last_report(journal: Path, failure: AttemptFailed) -> LastReport | None:
    """What the rank that failed had reported in that attempt; None if nothing is near the journal's end."""
    with journal.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - _NEAR_THE_END, 0))
        lines = file.read(_NEAR_THE_END).splitlines(keepends=True)
    for line in reversed(lines):  # the first one may be a part of a record: then it does not match its checksum
        body = body_of(line)
        if body is None or not body.startswith(beginning_of(ROW)):
            continue
        row = FORMAT.decode(body, journal)
        if isinstance(row, Row) and (row.rank, row.attempt) == (failure.rank, failure.attempt):
            return LastReport(row.rank, row.index, row.metrics)
    return None
