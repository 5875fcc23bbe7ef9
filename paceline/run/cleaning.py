"""Removes what of a run nobody needs: what killed drivers left half-written, and checkpoints beyond the best few.

A run that has a driver, or belongs to a search that has one, is never touched. Whoever cleans holds the run's lock or
lease meanwhile, and says in the journal which checkpoints are gone before it deletes them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, UnsetType

from paceline.air.errors import RunLockedError
from paceline.air.secrets import without_credentials
from paceline.run.found_runs import add_checkpoints
from paceline.run.records import CheckpointRetired, Ended, Reached, RunRecords
from paceline.run.retention import (
    KeptCheckpoint,
    damaged_numbers,
    deleted_numbers,
    pending_validations,
    ranked,
    still_kept,
)
from paceline.storage import lease, lock
from paceline.storage.commit import delete_tree, to_trash
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal import Journal
from paceline.storage.journal_parts import fetch_journal
from paceline.storage.lock import RunLock
from paceline.storage.mirror import Mirror
from paceline.storage.run_dir import RunDir, resolve_storage, search_journal
from paceline.storage.twin import read_origin


class Removed(Struct):
    """Something that was removed, or would be."""

    kind: Literal["leftover", "checkpoint"]
    path: str
    size: int | None = None
    """Bytes; None if that is not known."""


def clean_run(
    path: str,
    *,
    keep: int | None = None,
    dry_run: bool = False,
    filesystem: Any = None,
    announce: Callable[[str], None] | None = None,
) -> list[Removed]:
    """Remove leftovers, and with `keep` all checkpoints but the n best and the newest, with which the run continues.

    Raises RunLockedError if the run is live. `dry_run` only looks.
    """
    place = resolve_storage(path)
    if isinstance(place, Path):
        return _clean_local(RunDir(place), keep, dry_run)
    return _clean_remote(place, keep, dry_run, filesystem, announce)


def _clean_local(run_dir: RunDir, keep: int | None, dry_run: bool) -> list[Removed]:
    with _held(run_dir, dry_run):
        records = RunRecords.read(run_dir)
        search = run_dir.root.parent / search_journal(records.header.trial_id.partition("_")[0])
        _refuse_if(lock.is_held(search.with_suffix(".lock")), f"the search of {run_dir.root}")
        undeleted = [path for number, path in run_dir.checkpoints() if number in _given_up(records)]
        if (
            run_dir.requests.is_dir() and not run_dir.requests.is_symlink()
        ):  # of those who asked a driver that was killed
            undeleted.append(run_dir.requests)
        removed = [Removed("leftover", str(path), _size(path)) for path in [*run_dir.leftovers(), *undeleted]]
        if not dry_run:
            run_dir.sweep()
            for path in undeleted:
                delete_tree(to_trash(path))
        if keep is None or read_origin(run_dir.origin):  # of a local copy, the original says what is kept
            return removed
        kept = still_kept(records, dict(run_dir.checkpoints()))
        gone = _superfluous(records, kept, keep)
        removed += [Removed("checkpoint", str(run_dir.checkpoint(each.number)), each.size or None) for each in gone]
        if gone and not dry_run:
            _retire(run_dir.journal, records, kept, gone)
            for each in gone:
                delete_tree(to_trash(run_dir.checkpoint(each.number)))
        return removed


@contextlib.contextmanager
def _held(run_dir: RunDir, dry_run: bool) -> Iterator[None]:
    """Keep drivers out; somebody who only looks does not have to."""
    if dry_run:
        _refuse_if(lock.is_held(run_dir.lock), str(run_dir.root))
        yield
    else:
        with RunLock(run_dir.lock):
            yield


def _clean_remote(
    uri: str, keep: int | None, dry_run: bool, filesystem: Any, announce: Callable[[str], None] | None
) -> list[Removed]:
    store = FsspecFilesystem(uri, filesystem)
    _refuse_if(lease.is_held(store), store.label)
    with tempfile.TemporaryDirectory(prefix="paceline-clean-") as folder:
        run_dir = RunDir(Path(folder))
        mirror = Mirror(store, run_dir)
        if not dry_run:
            mirror.acquire(announce)
        try:
            fetch_journal(store, run_dir.journal.name, run_dir.journal)
            records = RunRecords.read(run_dir)
            _refuse_if_search_is_live(uri, records, filesystem)
            undeleted = [number for number in mirror.checkpoint_numbers() if number in _given_up(records)]
            names = [*mirror.staged(), *(run_dir.checkpoint(number).name for number in undeleted)]
            left = [Removed("leftover", f"{store.label}/{name}") for name in names]
            if left and not dry_run:
                mirror.remove_staged()
                for number in undeleted:
                    mirror.remove_checkpoint(number)
            kept = still_kept(records, dict.fromkeys(mirror.checkpoint_numbers()))
            gone = [] if keep is None else _superfluous(records, kept, keep)
            if gone and not dry_run:
                mirror.journal_parts.pushed = run_dir.journal.stat().st_size
                _retire(run_dir.journal, records, kept, gone)
                mirror.push_state()
                for each in gone:
                    mirror.remove_checkpoint(each.number)
        finally:
            if not dry_run:
                mirror.release()
        places = {each.number: f"{store.label}/{run_dir.checkpoint(each.number).name}" for each in gone}
        return left + [Removed("checkpoint", places[each.number], each.size or None) for each in gone]


def _refuse_if_search_is_live(uri: str, records: RunRecords, filesystem: Any) -> None:
    parent, _, _ = uri.rpartition("/")
    journal = search_journal(records.header.trial_id.partition("_")[0])
    _refuse_if(
        lease.is_held(FsspecFilesystem(parent, filesystem), f"{journal.removesuffix('.jsonl')}.lease"),
        f"the search of {without_credentials(uri)}",
    )


def _refuse_if(is_live: bool, what: str) -> None:
    if is_live:
        raise RunLockedError(f"{what} is live, so nothing of it is removed.")


def _given_up(records: RunRecords) -> set[int]:
    """Checkpoints that a driver was about to delete. What is left of damaged ones is for the user to look at."""
    return deleted_numbers(records) - damaged_numbers(records)


def _superfluous(records: RunRecords, kept: list[KeptCheckpoint], keep: int) -> list[KeptCheckpoint]:
    """All but the best; the newest stays too, because the run continues from it, and what is still to be validated."""
    config = records.header.checkpoint_config
    numbers = (
        {each.number for each in ranked(config, kept)[max(0, len(kept) - keep) :]} | {kept[-1].number}
        if kept
        else set()
    )
    numbers |= pending_validations(records).keys()
    return [each for each in kept if each.number not in numbers]


def _retire(journal: Path, records: RunRecords, kept: list[KeptCheckpoint], gone: list[KeptCheckpoint]) -> None:
    """Say what is about to be deleted; and, of a run that has ended, what it still has."""
    writer = Journal(journal)
    try:
        for each in gone:
            writer.append(CheckpointRetired(number=each.number))
        end = records.last_end
        if end is not None:
            left = [each for each in kept if each not in gone]
            writer.append(_with_checkpoints(end, left, records), finite=False)
        writer.sync()
    finally:
        writer.close()


def _with_checkpoints(end: Ended, left: list[KeptCheckpoint], records: RunRecords) -> Ended:
    if isinstance(end.reached, UnsetType):
        return end
    reached: Reached = msgspec.structs.replace(end.reached, best={})
    add_checkpoints(reached, left, records.header.checkpoint_config)
    return msgspec.structs.replace(end, reached=reached)


def _size(path: Path) -> int:
    if not path.is_dir() or path.is_symlink():
        return path.lstat().st_size
    below = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(os.lstat(each).st_size for each in below)
