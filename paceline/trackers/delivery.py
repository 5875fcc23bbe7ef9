"""One run and one tracker: reads the run's journal from where it was left, and hands over what is new.

The journal says everything that a tracker is told, so nothing is kept in memory for a service that is down, and a
driver that continues the run continues its tracking too. Nothing here waits, and nothing is retried: `advance` raises
what the tracker raises, and begins again at the last acknowledged place when it is called the next time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from paceline.air.faults import fault_point
from paceline.run.records import FORMAT, AttemptStarted, CheckpointCommitted, Ended, Header, Record, Row, Validated
from paceline.storage import lock
from paceline.storage.files import make_private_dirs
from paceline.storage.lock import RunLock
from paceline.storage.run_dir import RunDir
from paceline.trackers.cursor import Cursor, mark_unsent, read_cursor, write_cursor
from paceline.trackers.story import Story
from paceline.trackers.tracker import (
    Outcome,
    RejectedError,
    RunGoneError,
    TrackedCheckpoint,
    TrackedRow,
    Tracker,
    outcome_of,
)
from paceline.trackers.values import shown_config

MOST_RECORDS = 1000
"""Handed over before another run has its turn."""
LOCK_LOOK_S = 10.0
"""How often an idle run is asked whether it still has a driver."""


class Step(Struct, frozen=True):
    """Something to tell the tracker, and the cursor when that is done."""

    cursor: Cursor
    told: list[TrackedRow] | AttemptStarted | TrackedCheckpoint | Ended


class Delivery:
    """The rows of one run on their way to one tracker. Use it from one thread; `end` and `abandon` may be called
    from another."""

    def __init__(
        self,
        tracker: Tracker,
        run_dir: RunDir,
        file: str,
        *,
        name: str = "",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """`file` names the cursor. `name` and `config` are needed where the journal does not say them."""
        self.run_dir = run_dir
        self.file = file
        self.notes: list[str] = []
        """What was passed over because the service rejected it."""
        self._tracker = tracker
        self._path = run_dir.tracker(file)
        self._lock = RunLock(self._path.with_suffix(".lock"))
        self._name = name
        self._config = config
        self._story = Story()
        self._cursor = Cursor(name=name)
        self._file_version: tuple[int, int] | None = None
        """Of the cursor's file, as it was last read or written: somebody else may have sent rows meanwhile."""
        self._first_size: int | None = self._journal_size()
        """Of the journal, before this driver adds to it; None once it is known what the service has of that."""
        self._is_continued = _has_attempt(run_dir.journal, self._first_size)
        self._has_looked = False
        """At the cursor's file."""
        self._read_all_of = -1
        """The size of the journal when all of it was handed over."""
        self._is_open = False
        self._is_sure = False
        """Known is what the service has."""
        self._has = 0
        """The service has all rows before this one."""
        self._ended_as: Outcome | None = None
        self._look_at_lock = time.monotonic() + LOCK_LOOK_S
        self._is_abandoned = False

    @property
    def is_done(self) -> bool:
        """The run has ended, and the service knows everything about it."""
        return self._is_abandoned or (self._ended_as is not None and self._is_idle and not self._must_close)

    @property
    def _is_idle(self) -> bool:
        return self._read_all_of == self._journal_size()

    @property
    def _must_close(self) -> bool:
        """The service's run is open."""
        return self._cursor.run_id is not None and self._cursor.outcome is None

    @property
    def _must_close_now(self) -> bool:
        """The journal says nothing of the run's end, because its storage failed or its driver was killed."""
        return self._ended_as is not None and self._must_close

    def end(self, outcome: Outcome) -> None:
        """The run has ended: its journal grows no more."""
        self._ended_as = outcome

    def notice_end(self) -> None:
        """A driver whose storage failed cannot tell that the run has ended; but it has let go of the run's lock."""
        if self._ended_as is None and time.monotonic() > self._look_at_lock:
            self._look_at_lock = time.monotonic() + LOCK_LOOK_S
            if not lock.is_held(self.run_dir.lock):
                self.end("interrupted")

    def abandon(self) -> None:
        """Nobody waits any longer, not even for a call that is under way: whoever sends the rest may begin."""
        self._is_abandoned = True
        mark_unsent(self._path, self._name)
        self._lock.release()

    def rows_left(self) -> int:
        """How many rows the service has not acknowledged."""
        cursor = read_cursor(self._path)
        if cursor.offset > self._journal_size():
            return 0
        return rows_in(FORMAT.after(self.run_dir.journal, cursor.offset))

    def advance(self) -> bool:
        """Hand over what is new, at most `MOST_RECORDS`; True if there was something."""
        if self.is_done or (self._is_idle and not self._must_close_now):
            return False
        make_private_dirs(self._path.parent)
        with self._lock:
            self._look_at_cursor()
            size = self._journal_size()
            steps, behind, is_all = self._steps()
            if (steps or self._must_close_now) and not (self._is_open and self._is_sure):
                self._open()
                if self._is_abandoned:
                    return False
                steps, behind, is_all = self._steps()
            for step in steps:
                self._carry_out(step)
                if self._is_abandoned:
                    return False
            self._cursor = replace(self._cursor, offset=max(behind, self._cursor.offset))
            if is_all:
                self._read_all_of = size
                if self._ended_as is not None and self._must_close:
                    self._close(self._ended_as, self._cursor)
            return bool(steps) or not is_all

    # -- what is new ----------------------------------------------------------------------

    def _journal_size(self) -> int:
        try:
            return os.stat(self.run_dir.journal).st_size
        except FileNotFoundError:
            return 0

    def _look_at_cursor(self) -> None:
        """Go to where the file says, unless this object wrote it."""
        version = _version_of(self._path)
        if version == self._file_version and self._has_looked:
            return
        self._file_version, self._has_looked = version, True
        cursor = read_cursor(self._path)
        if self._first_size is not None:  # a journal that lost its end in a power cut is continued from there
            cursor = replace(cursor, offset=min(cursor.offset, self._first_size))
        self._cursor = replace(cursor, name=self._name or cursor.name)
        self._story = Story.until(self.run_dir.journal, self._cursor)
        self._is_sure = False

    def _steps(self) -> tuple[list[Step], int, bool]:
        """What to tell the tracker now, the offset behind it, and whether that is all that the journal has."""
        steps: list[Step] = []
        rows: list[TrackedRow] = []
        cursor, read = self._cursor, 0
        for record, offset in islice(FORMAT.after(self.run_dir.journal, cursor.offset), MOST_RECORDS):
            read += 1
            if steps and isinstance(steps[-1].told, Ended):  # the run was continued after that
                steps.pop()
            if isinstance(record, Row):
                if record.rank == 0:
                    rows.append(self._story.row(record, cursor))
                    cursor = replace(cursor, rows=cursor.rows + 1, elapsed=record.elapsed)
            elif isinstance(record, Validated):
                rows.append(self._story.validation(record, cursor))
                cursor = replace(cursor, rows=cursor.rows + 1)
            elif isinstance(record, Header):
                self._story.header = record
            elif isinstance(record, AttemptStarted | Ended) or self._is_wanted(record):
                if rows:
                    steps.append(Step(cursor, rows))
                    rows = []
                if isinstance(record, AttemptStarted):
                    self._story.attempts[record.attempt] = record
                    cursor = replace(cursor, attempt=record.attempt, elapsed=0.0)
                told = self._checkpoint(record) if isinstance(record, CheckpointCommitted) else record
                steps.append(Step(replace(cursor, offset=offset), told))
            cursor = replace(cursor, offset=offset)
        if rows:
            steps.append(Step(cursor, rows))
        return steps, cursor.offset, read < MOST_RECORDS

    def _is_wanted(self, record: Record) -> TypeGuard[CheckpointCommitted]:
        return self._tracker.wants_checkpoints and isinstance(record, CheckpointCommitted)

    def _checkpoint(self, record: CheckpointCommitted) -> TrackedCheckpoint:
        path = self.run_dir.checkpoint(record.number)
        return TrackedCheckpoint(number=record.number, iteration=record.iteration, attempt=record.attempt, path=path)

    # -- what is done about it ------------------------------------------------------------

    def _open(self) -> None:
        """Have the service's run, and know what it has."""
        if not self._is_open:
            may_exist = self._cursor.is_opening or self._is_continued
            run = self._story.run(self._cursor, self.run_dir, self._config, may_exist=may_exist)
            if self._cursor.run_id is None and not self._cursor.is_opening:
                self._save(replace(self._cursor, is_opening=True))
            run_id = self._tracker.open(run, self._cursor.run_id)
            fault_point("after_tracker_open")
            self._is_open = True
            if (run_id, None) != (self._cursor.run_id, self._cursor.outcome):
                self._save(replace(self._cursor, run_id=run_id, name=run.name, outcome=None, is_opening=False))
        if self._is_abandoned:
            return
        assert self._cursor.run_id is not None
        received = self._tracker.received(self._cursor.run_id)
        self._has = 0 if received is None else received
        if received is not None and received < self._cursor.rows:  # what it had taken did not survive
            self._cursor = replace(self._cursor, offset=0, rows=0, attempt=-1, elapsed=0.0)
        self._count_lost_rows(self._first_size)
        self._first_size = None
        self._is_sure = True

    def _count_lost_rows(self, size: int | None) -> None:
        """The service may have rows that the journal lost: a copy on remote storage is as old as the last checkpoint.

        Count them. Otherwise new rows would get their numbers, and would pass for rows that have arrived.
        """
        if size is None or self._has <= self._cursor.rows:
            return
        found = takewhile(lambda each: each[1] <= size, FORMAT.after(self.run_dir.journal, self._cursor.offset))
        lost = self._has - self._cursor.rows - rows_in(found)
        if lost > 0:
            self._save(replace(self._cursor, rows=self._cursor.rows + lost))

    def _carry_out(self, step: Step) -> None:
        told, run_id = step.told, self._cursor.run_id
        assert run_id is not None
        self._is_sure = False  # until it is done
        if isinstance(told, Ended):
            self._close(outcome_of(told.status), step.cursor)
            return
        if isinstance(told, AttemptStarted):
            before, now = self._story.config_of(self._cursor.attempt), self._story.config_of(told.attempt)
            if self._cursor.attempt >= 0 and now != before and now is not None:
                with self._passing_over("a changed configuration"):
                    self._tracker.change_config(run_id, shown_config(now), told.attempt)
        elif isinstance(told, TrackedCheckpoint):
            self._add_checkpoint(run_id, told)
        else:
            self._send(run_id, [row for row in told if row.ordinal >= self._has])
            fault_point("after_tracker_send")
        self._is_sure = True
        self._move_to(step.cursor)

    def _send(self, run_id: str, rows: Sequence[TrackedRow]) -> None:
        """If the service rejects some rows, find them and send the others."""
        if not rows:
            return
        try:
            self._tracker.send(run_id, rows)
        except RunGoneError:
            raise
        except RejectedError as error:
            if len(rows) == 1:
                self.notes.append(f"row {rows[0].index}: {error}")
                return
            half = len(rows) // 2
            self._send(run_id, rows[:half])
            self._send(run_id, rows[half:])

    def _add_checkpoint(self, run_id: str, checkpoint: TrackedCheckpoint) -> None:
        try:
            with self._passing_over(checkpoint.path.name):
                self._tracker.add_checkpoint(run_id, checkpoint)
        except FileNotFoundError:
            if checkpoint.path.exists():
                raise
            # Retention has deleted it meanwhile.

    def _close(self, outcome: Outcome, cursor: Cursor) -> None:
        assert self._cursor.run_id is not None
        with self._passing_over("the end of the run"):
            self._tracker.close(self._cursor.run_id, outcome)
        self._is_open = False
        self._save(replace(cursor, run_id=self._cursor.run_id, name=self._cursor.name, outcome=outcome))

    @contextlib.contextmanager
    def _passing_over(self, what: str) -> Iterator[None]:
        try:
            yield
        except RunGoneError:
            raise
        except RejectedError as error:
            self.notes.append(f"{what}: {error}")

    def _move_to(self, cursor: Cursor) -> None:
        moved = replace(cursor, run_id=self._cursor.run_id, name=self._cursor.name, outcome=None, is_opening=False)
        if self._tracker.keeps_rows:
            self._save(moved)
        else:
            self._cursor = moved

    def _save(self, cursor: Cursor) -> None:
        if self._is_abandoned:  # somebody else may be sending by now
            return
        write_cursor(self._path, cursor)
        self._cursor = cursor
        self._file_version = _version_of(self._path)


def _has_attempt(journal: Path, size: int) -> bool:
    """Whether workers were started before the journal was so long: an earlier driver may have tracked the run."""
    records = islice(FORMAT.after(journal), 2) if size else ()
    return any(isinstance(record, AttemptStarted) and behind <= size for record, behind in records)


def rows_in(found: Iterable[tuple[Record, int]]) -> int:
    """How many calls there are among some records: one for each report, and one for each validation."""
    return sum(isinstance(record, Validated) or (isinstance(record, Row) and record.rank == 0) for record, _ in found)


def _version_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
