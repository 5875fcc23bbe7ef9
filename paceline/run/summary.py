"""A run in one struct, from its journal alone: what everything that displays runs shows.

Nothing is locked, changed or unpickled, so that it works beside a live driver, and with files from anywhere. Of a run
that has ended only the first and the last records are read, however long it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, UnsetType

from paceline.air.config import CheckpointConfig
from paceline.air.errors import RestoreError, StorageError
from paceline.air.result import Status
from paceline.run.history import reported
from paceline.run.records import (
    FORMAT,
    ROW,
    AttemptFailed,
    AttemptStarted,
    Ended,
    Header,
    Reached,
    Row,
    no_journal,
)
from paceline.run.retention import KeptCheckpoint, best, listed_numbers, still_kept
from paceline.storage import lease, lock
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal_parts import fetch_journal
from paceline.storage.run_dir import RunDir, resolve_storage

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


def summary_of(path: str | Path, filesystem: Any = None) -> RunSummary:
    """The summary of the run whose directory is at a path, or at a URI."""
    place = resolve_storage(path)
    if isinstance(place, Path):
        run_dir = RunDir(place)
        return _summary(run_dir, str(place), lock.is_held(run_dir.lock))
    store = FsspecFilesystem(place, filesystem)
    with tempfile.TemporaryDirectory(prefix="paceline-summary-") as folder:
        run_dir = RunDir(Path(folder))
        fetch_journal(store, run_dir.journal.name, run_dir.journal)
        return _summary(run_dir, store.label, lease.is_held(store))


def _summary(run_dir: RunDir, place: str, alive: bool) -> RunSummary:
    try:
        header, started = _beginning(run_dir.journal)
        end = FORMAT.last_of(run_dir.journal, "end", unless="attempt")
    except FileNotFoundError:
        raise no_journal(run_dir) from None
    except OSError as error:
        raise StorageError(f"{run_dir.journal} cannot be read: {error}") from error
    assert end is None or isinstance(end, Ended)
    if end is None or isinstance(end.reached, UnsetType):
        reached = _reached_so_far(run_dir.journal, header)
    else:
        reached = end.reached
    return RunSummary(
        path=place,
        name=header.experiment_name,
        trial_id=header.trial_id,
        trainer=header.trainer,
        status=end.status if end is not None else "running" if alive else "killed",
        alive=alive,
        num_workers=header.current_settings["scaling_config"].get("num_workers") or 1,
        started=started,
        ended=end.time if end is not None else None,
        reached=reached,
        error=(end.message if end is not None else "") or reached.error,
    )


def _beginning(journal: Path) -> tuple[Header, float]:
    """The header, and when the run began."""
    records = FORMAT.read(journal)
    header = next(records, None)
    if not isinstance(header, Header):
        raise RestoreError(f"{journal} does not begin with a run's description.")
    if header.time:
        return header, header.time
    first = next(records, None)
    return header, first.time if isinstance(first, AttemptStarted) else 0.0


def _reached_so_far(journal: Path, header: Header) -> Reached:
    """What the records of a run that has not ended, or of an earlier version, add up to."""
    records = list(FORMAT.scan(journal, without=ROW))
    attempts = [record for record in records if isinstance(record, AttemptStarted)]
    failures = [record for record in records if isinstance(record, AttemptFailed)]
    kept = still_kept(records, dict.fromkeys(listed_numbers(records)))
    reached = Reached(
        attempts=1 + max((attempt.attempt for attempt in attempts), default=-1),
        error=failures[-1].in_words if failures else "",
    )
    add_checkpoints(reached, kept, header.checkpoint_config)
    if attempts:
        _add_last_row(reached, journal, attempts[-1], kept)
    return reached


def _add_last_row(reached: Reached, journal: Path, attempt: AttemptStarted, kept: Sequence[KeptCheckpoint]) -> None:
    """Rows of earlier attempts are superseded, except for those up to the point where the last one began."""
    last = next(
        (row for row in FORMAT.backwards(journal, b'"rank":0,') if isinstance(row, Row) and row.rank == 0), None
    )
    if last is not None and last.attempt == attempt.attempt:
        reached.iteration = last.index
        reached.time_total_s = attempt.start_time_s + last.elapsed
        reached.metrics = reported(last.reduced or last.metrics)
    else:
        reached.iteration, reached.time_total_s = attempt.start_index, attempt.start_time_s
        reached.metrics = next((reported(each.row) for each in kept if each.iteration == attempt.start_index), {})


def add_checkpoints(reached: Reached, kept: Sequence[KeptCheckpoint], config: CheckpointConfig) -> None:
    reached.checkpoints = [each.number for each in kept]
    reached.size = sum(each.size for each in kept)
    if kept and config.checkpoint_score_attribute:
        reached.best = reported(best(config, kept)[-1].row)
