"""A run in one struct, which is what everything that displays runs shows, and a run that is looked at again and again.

As its journal grows, only what is new in it is read.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from msgspec import Struct, UnsetType

from paceline.air.config import CheckpointConfig
from paceline.air.constants import TRAINING_ITERATION
from paceline.air.errors import RestoreError
from paceline.air.metrics import reported
from paceline.air.result import Status
from paceline.air.validation import with_validation
from paceline.run.records import (
    FORMAT,
    ROW,
    AttemptFailed,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointRetired,
    Ended,
    Header,
    Reached,
    Record,
    Row,
    Validated,
)
from paceline.run.retention import KeptCheckpoint, best
from paceline.storage.journal import body_of
from paceline.storage.journal_parts import RemoteJournal
from paceline.storage.record_format import beginning_of

_BEGINNING = 64
"""Bytes of a line: enough for checksum, length and kind."""
_A_ROW, _RANK, _OF_RANK_0 = beginning_of(ROW), b'"rank":', b'"rank":0,'

RunStatus = Status | Literal["running", "killed", "pending"]
"""killed: the journal has no end, and nobody is writing it; pending: of a trial that was not started yet."""


class RunSummary(Struct, kw_only=True):
    """What a run is, whether it is alive, and how far it has come."""

    path: str
    name: str
    """Of its experiment."""
    trial_id: str
    trainer: str
    status: RunStatus
    alive: bool
    """A driver holds the run."""
    num_workers: int
    started: float
    """Seconds since the epoch; 0.0 if no worker was ever started."""
    ended: float | None
    reached: Reached
    error: str = ""
    """What ended the run, or the cause of its last failure."""
    score_attribute: str | None = None
    """The metric that its checkpoints are ranked by."""
    score_order: str = "max"
    most_iterations: float | None = None
    """As its stop criterion says; None if that does not count iterations."""


def summary_from(
    header: Header, started: float, end: Ended | None, reached: Reached, place: str, alive: bool
) -> RunSummary:
    """The summary of a run at a place."""
    settings = header.current_settings
    ranking = settings["run_config"]["checkpoint_config"]
    return RunSummary(
        path=place,
        name=header.experiment_name,
        trial_id=header.trial_id,
        trainer=header.trainer,
        status=end.status if end is not None else "running" if alive else "killed",
        alive=alive,
        num_workers=_workers(settings["scaling_config"].get("num_workers"), reached),
        started=started,
        ended=end.time if end is not None else None,
        reached=reached,
        error=(end.message if end is not None else "") or reached.error,
        score_attribute=ranking.get("checkpoint_score_attribute"),
        score_order=ranking.get("checkpoint_score_order") or "max",
        most_iterations=most_iterations(settings["run_config"].get("stop")),
    )


def _workers(wanted: int | Sequence[int] | None, reached: Reached) -> int:
    """Of an elastic run those that the last attempt had."""
    return wanted or 1 if isinstance(wanted, int | None) else reached.world_size or max(wanted)


def most_iterations(stop: Any) -> float | None:
    """How many iterations a stop criterion allows, as it was written down; None if it does not count them."""
    limit = stop.get(TRAINING_ITERATION) if isinstance(stop, Mapping) else None
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def add_checkpoints(reached: Reached, kept: Sequence[KeptCheckpoint], config: CheckpointConfig) -> None:
    reached.checkpoints = [each.number for each in kept]
    reached.size = sum(each.size for each in kept)
    if kept and config.checkpoint_score_attribute:
        reached.best = reported(best(config, kept)[-1].row)


class FollowedRun:
    """What the journal of a run adds up to so far. Of the rows only the last one is decoded."""

    def __init__(self, journal: Path | RemoteJournal) -> None:
        self.journal = journal
        self._begin()

    def _begin(self) -> None:
        self._offset = 0
        self._header: Header | None = None
        self._started = 0.0
        self._attempts = 0
        self._attempt: AttemptStarted | None = None
        self._failure: AttemptFailed | None = None
        self._end: Ended | None = None
        self._kept: dict[int, KeptCheckpoint] = {}
        self._validated: dict[tuple[int, int], dict[str, Any]] = {}
        self._last_row = b""

    def read_on(self) -> None:
        """Read what is new. A line that is not complete yet is left to the next call."""
        if isinstance(self.journal, Path):
            with open(self.journal, "rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:  # replaced by another one
                    self._begin()
                file.seek(self._offset)
                self._read(file)
        else:
            self._read(io.BytesIO(self.journal.read_from(self._offset)))

    def _read(self, lines: IO[bytes]) -> None:
        for line in lines:
            if line[-1:] != b"\n":
                return
            self._offset += len(line)
            if _A_ROW in line[:_BEGINNING]:
                if line.startswith(_OF_RANK_0, line.find(_RANK)):  # the first one: metrics may have some, too
                    self._last_row = line
            elif (body := body_of(line)) is not None and (record := FORMAT.decode(body, self.journal)) is not None:
                self._take(record)

    def _take(self, record: Record) -> None:
        match record:
            case Header():
                self._header, self._started = record, record.time
            case AttemptStarted():
                self._attempts = max(self._attempts, record.attempt + 1)
                self._started = self._started or record.time
                self._attempt, self._end = record, None
            case AttemptFailed():
                self._failure = record
            case CheckpointCommitted():
                kept = KeptCheckpoint(record.number, record.iteration, record.score, record.row, record.size)
                self._kept[record.number] = kept
            case CheckpointRetired():
                self._kept.pop(record.number, None)
            case Validated():
                self._validated[record.attempt, record.index] = record.metrics
                about = self._kept.get(record.number)
                if about is not None and about.iteration == record.index:
                    self._kept[record.number] = about.validated(record.metrics)
            case Ended():
                self._end = record

    def summary(self, place: str, alive: bool) -> RunSummary:
        """The summary of the run at a place, as far as it was read."""
        if self._header is None:
            raise RestoreError(f"{self.journal} does not begin with a run's description.")
        end = self._end
        reached = self._reached(self._header) if end is None or isinstance(end.reached, UnsetType) else end.reached
        return summary_from(self._header, self._started, end, reached, place, alive)

    def _reached(self, header: Header) -> Reached:
        """What the records of a run that has not ended, or of an earlier version, add up to."""
        kept = [self._kept[number] for number in sorted(self._kept)]
        reached = Reached(attempts=self._attempts, error=self._failure.in_words if self._failure is not None else "")
        add_checkpoints(reached, kept, header.checkpoint_config)
        if self._attempt is not None:
            reached.world_size = self._attempt.world_size
            self._add_last_row(reached, self._attempt, kept)
        return reached

    def _add_last_row(self, reached: Reached, attempt: AttemptStarted, kept: Sequence[KeptCheckpoint]) -> None:
        """Rows of earlier attempts are superseded, except for those up to the point where the last one began."""
        body = body_of(self._last_row)
        last = FORMAT.decode(body, self.journal) if body is not None else None
        if isinstance(last, Row) and last.rank == 0 and last.attempt == attempt.attempt:
            reached.iteration = last.index
            reached.time_total_s = attempt.start_time_s + last.elapsed
            reached.metrics = reported(last.reduced or last.metrics)
            if (metrics := self._validated.get((last.attempt, last.index))) is not None:
                reached.metrics = with_validation(reached.metrics, metrics)
        else:
            reached.iteration, reached.time_total_s = attempt.start_index, attempt.start_time_s
            reached.metrics = next((reported(each.row) for each in kept if each.iteration == attempt.start_index), {})
