"""Runs as they are found in a directory or at a URI: where they are, how far they have come, how one is continued.

A summary is made from a run's journal alone. Nothing is locked, changed or unpickled, so that it works beside a live
driver, and with files from anywhere. Of a run that has ended only the first and the last records are read, however
long it was.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import UnsetType

from paceline.air.errors import JournalCorruptError, RestoreError, RunNotFoundError, StorageError
from paceline.run.records import FORMAT, AttemptStarted, Ended, Header, RunRecords, header_of, no_journal
from paceline.run.run_summary import FollowedRun, summary_from
from paceline.run.run_summary import RunSummary as RunSummary
from paceline.run.run_summary import add_checkpoints as add_checkpoints
from paceline.storage import lease, lock
from paceline.storage.commit import is_put_aside
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal_parts import fetch_ends, fetch_journal
from paceline.storage.run_dir import SEARCH_JOURNALS, RunDir, resolve_storage, search_journal
from paceline.storage.twin import read_origin

_WITHOUT_RECORD = ("train_loop_per_worker=...",)
"""What is probably to be given again for a run that does not say."""


def restore_line(trainer: str, place: str, again: Sequence[str]) -> str:
    """The call that continues a run; `again` are the arguments that are not stored with it."""
    return f"{trainer}.restore({', '.join([repr(place), *again])}).fit()"


def is_run(header: Header) -> bool:
    """False for a trial, which its search continues."""
    return header.settings.get("again", _WITHOUT_RECORD) is not None


def line_for(header: Header, place: str) -> str:
    """The same for a run that was found at a place."""
    return restore_line(header.trainer, place, header.settings.get("again", _WITHOUT_RECORD))


def search_line(place: str, again: Sequence[str] = (), *, resume_errored: bool = False) -> str:
    """The same for a search, on request also for its failed trials."""
    errored = ["resume_errored=True"] if resume_errored else []
    return f"Tuner.restore({', '.join([repr(place), 'trainable=...', *errored, *again])}).fit()"


def place_of(run_dir: RunDir) -> str:
    """What restore() takes: the URI of a run on remote storage."""
    return read_origin(run_dir.origin) or str(run_dir.root)


def search_of(trial: str, header: Header, filesystem: Any = None) -> str | None:
    """The place of the search that a trial belongs to; None for a run of its own."""
    journal = search_journal(header.trial_id.partition("_")[0])
    parent, _, _ = trial.rstrip("/").rpartition("/")
    resolved = resolve_storage(parent) if parent else Path("/")
    if isinstance(resolved, Path):
        return str(resolved) if (resolved / journal).is_file() else None
    return parent if FsspecFilesystem(parent, filesystem).exists(journal) else None


def instead_of_search(path: str, filesystem: Any = None) -> str:
    """What a place that has no search holds instead, and the line that continues that; empty if it holds no run."""
    resolved = resolve_storage(path)
    if isinstance(resolved, Path):
        found = [(str(each.root), place_of(each), header_of(each)) for each in find_run_dirs(resolved)[:1]]
    else:
        trials, _ = find_remote_runs(resolved, filesystem)
        found = [(place, place, records.header) for place, records in trials[:1]]
    for directory, place, header in found:
        if header is not None:
            search = search_of(directory, header, filesystem)
            if search is not None:
                return f"It is one trial of a search. To continue the search: {search_line(search)}"
            if not is_run(header):
                return f"It has trials of a search, but no {SEARCH_JOURNALS}. Result.from_path reads each trial."
            return f"It is a run of {header.trainer}. To continue it: {line_for(header, place)}"
    return ""


def find_run_dirs(path: Path) -> list[RunDir]:
    """The directories of runs at or below an experiment's directory, newest first."""
    below = [each for each in path.glob("*/") if not is_put_aside(each)] if path.is_dir() else []
    found = [RunDir(candidate) for candidate in (path, *below) if (candidate / "journal.jsonl").is_file()]
    return sorted(found, key=lambda run_dir: run_dir.journal.stat().st_mtime, reverse=True)


def find_remote_runs(
    uri: str, filesystem: Any = None
) -> tuple[list[tuple[str, RunRecords]], list[RestoreError | StorageError]]:
    """(URI, records) of the runs at or one level below a URI, the one last worked at first.

    And what is wrong with those that cannot be read: one damaged run is no reason to give up the others.
    """
    store = FsspecFilesystem(uri, filesystem)
    found, problems = [], []
    for name in store.list():
        *folders, file = name.split("/")
        if file == "journal.jsonl" and len(folders) <= 1:
            try:
                found.append(("/".join([uri, *folders]), _remote_records(store, name)))
            except (RestoreError, StorageError) as error:
                problems.append(error)
    return sorted(found, key=lambda run: run[1].last_time, reverse=True), problems


def _remote_records(store: FsspecFilesystem, journal: str) -> RunRecords:
    with tempfile.TemporaryDirectory(prefix="paceline-restore-") as folder:
        run_dir = RunDir(Path(folder))
        fetch_journal(store, journal, run_dir.journal)
        try:
            return RunRecords.read(run_dir)
        except (RestoreError, StorageError) as error:
            text = str(error).replace(str(run_dir.journal), f"{store.label}/{journal}")
            raise RestoreError(text) from error


def does_not_exist(path: str, filesystem: Any, what: str) -> RestoreError | None:
    """The error for a place where there is nothing at all, or a file; `what` should be there."""
    resolved = resolve_storage(path)
    if isinstance(resolved, Path):
        if resolved.is_dir():
            return None
        problem = "is a file" if resolved.exists() else "does not exist"
        return RunNotFoundError(f"{path} {problem}: give the directory of {what}.")
    store = FsspecFilesystem(resolved, filesystem)
    return None if any(store.entries()) else RunNotFoundError(f"{store.label} does not exist: give the URI of {what}.")


def summary_of(path: str | Path, filesystem: Any = None) -> RunSummary:
    """The summary of the run whose directory is at a path, or at a URI."""
    place = resolve_storage(path)
    if isinstance(place, Path):
        return summary_of_run_dir(RunDir(place))
    with fetched_run(place, filesystem, ends_suffice=True) as (store, run_dir):
        return summary_of_records(run_dir, store.label, lease.is_held(store))


@contextlib.contextmanager
def fetched_run(
    uri: str, filesystem: Any = None, *, ends_suffice: bool = False
) -> Iterator[tuple[FsspecFilesystem, RunDir]]:
    """A run's store, and a temporary directory with the run's journal.

    With `ends_suffice` what is in the middle of the journal of a run that has ended is left out. Errors name the store.
    """
    store = FsspecFilesystem(uri, filesystem)
    with tempfile.TemporaryDirectory(prefix="paceline-fetched-") as folder:
        run_dir = RunDir(Path(folder))
        journal = run_dir.journal
        try:
            if not (ends_suffice and (fetch_ends(store, journal.name, journal) or _says_its_end(journal))):
                fetch_journal(store, journal.name, journal)
        except FileNotFoundError:
            raise no_journal(run_dir, store.label) from None
        try:
            yield store, run_dir
        except (RestoreError, JournalCorruptError) as error:
            raise type(error)(str(error).replace(folder, store.label)) from error


def _says_its_end(journal: Path) -> bool:
    end = FORMAT.last_of(journal, "end", unless="attempt")
    return isinstance(end, Ended) and not isinstance(end.reached, UnsetType)


def summary_of_run_dir(run_dir: RunDir) -> RunSummary:
    """The summary of the run in a local directory."""
    return summary_of_records(run_dir, str(run_dir.root), lock.is_held(run_dir.lock))


def summary_of_records(run_dir: RunDir, place: str, alive: bool) -> RunSummary:
    """The summary of a run at a place, whose journal is in a directory."""
    try:
        header, started = _beginning(run_dir.journal)
        end = FORMAT.last_of(run_dir.journal, "end", unless="attempt")
        if isinstance(end, Ended) and not isinstance(end.reached, UnsetType):
            return summary_from(header, started, end, end.reached, place, alive)
        run = FollowedRun(run_dir.journal)
        run.read_on()
        return run.summary(place, alive)
    except FileNotFoundError:
        raise no_journal(run_dir) from None
    except OSError as error:
        raise StorageError(f"{run_dir.journal} cannot be read: {error}") from error


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
