"""How many rows of a run its trackers have sent, as its files say. No service is asked."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from paceline.air.errors import RestoreError, StorageError
from paceline.run.records import FORMAT
from paceline.trackers.cursor import read_cursor
from paceline.trackers.delivery import rows_in


class TrackerState(Struct, frozen=True):
    """What a tracker has acknowledged of a run, or of the trials of a search."""

    file: str
    """``mlflow``; ``mlflow-2`` for a second one of this kind."""
    sent: int
    """Rows that the service has."""
    left: int
    """Rows of the journal that it has not acknowledged."""
    how_to_send: str = ""
    """The call that sends what is left; empty if nothing is."""


def tracker_states(run: str | Path) -> list[TrackerState]:
    """One for each tracker that a run in a local directory has had."""
    return states_together(run, [run])


def states_together(place: str | Path, runs: Sequence[str | Path]) -> list[TrackerState]:
    """The sums for each tracker of the runs in a directory, such as the trials of a search.

    A run without the file of a tracker that others have has not been sent at all: `send` would send all of it.
    """
    files = {path.stem for run in runs for path in Path(run, "trackers").glob("*.json")}
    states = []
    for file in sorted(files):
        counts = [_sent_and_left(Path(run), file) for run in runs]
        states.append(_state(file, sum(sent for sent, _ in counts), sum(left for _, left in counts), place))
    return states


def _sent_and_left(run: Path, file: str) -> tuple[int, int]:
    cursor, journal, left = read_cursor(run / "trackers" / f"{file}.json"), run / "journal.jsonl", 0
    with contextlib.suppress(RestoreError, StorageError, OSError):  # other parts of the display say what is damaged
        if cursor.offset <= journal.stat().st_size:
            left = rows_in(FORMAT.after(journal, cursor.offset))
    return cursor.rows, left


def _state(file: str, sent: int, left: int, place: str | Path) -> TrackerState:
    which = f", file={file!r}" if re.search(r"-\d+$", file) else ""
    return TrackerState(file, sent, left, f"paceline.trackers.send({str(place)!r}, tracker=...{which})" if left else "")
