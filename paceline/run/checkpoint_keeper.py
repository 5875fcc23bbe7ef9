"""Commits checkpoints and deletes those that need not stay, in the background.

Order of a commit: rename the staged directory, write the journal's record and sync it;
only then the report is answered, and only after that what fell out of the kept set is
renamed to trash and deleted. At every point in between a crash leaves either the old
set or the new one.

Disks can be slow, and a driver may serve many runs: whatever waits for one happens in the keeper's threads. They
change nothing of the keeper itself; what they did is noted by the driver's thread, in `Commit.check` and `retire`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from paceline.air.attachment import Attachment
from paceline.air.background_pool import BackgroundPool
from paceline.air.checkpoint import Checkpoint
from paceline.air.config import CheckpointConfig
from paceline.air.errors import CheckpointCorruptError, CheckpointNotFoundError, StorageError
from paceline.air.manifest import verify
from paceline.air.settings import plain_config
from paceline.engine.base import Engine
from paceline.run.checkpoint_target import CheckpointTarget, SharedPath, choose_target
from paceline.run.messages import StagedCheckpoint
from paceline.run.records import CheckpointCommitted, CheckpointRetired, Record, RunRecords
from paceline.run.retention import (
    KeptCheckpoint,
    best,
    damaged_numbers,
    deleted_numbers,
    lacks_score,
    listed_numbers,
    mentioned_numbers,
    still_kept,
)
from paceline.run.side_files import checkpoint_at
from paceline.storage import commit as storage_commit
from paceline.storage.journal import Journal
from paceline.storage.mirror import Mirror
from paceline.storage.run_dir import MANIFEST_NAME, RunDir
from paceline.storage.stager import Stager

_LOCAL, _REMOTE, _DELETIONS = "local", "remote", "deletions"
"""Within each of them the order is kept; the three do not wait for each other."""


@dataclass
class Commit:
    """A commit under way: the work is done in the background, and `check` is called once it is `done`."""

    kept: KeptCheckpoint
    stored: Future[None]
    """On the run's own disk and in its journal."""
    upload: Future[None] | None
    take: Callable[[KeptCheckpoint], None]
    """Counts the checkpoint among the committed ones; called once, in the thread that checks."""
    taken: bool = False

    @property
    def done(self) -> bool:
        return (self.upload or self.stored).done()

    def check(self) -> None:
        """Wait until it is done and raise what went wrong; what is stored counts as committed from here on."""
        self.wait_until_stored()
        if self.upload is not None:
            try:
                self.upload.result()
            except OSError as error:
                raise StorageError(f"the checkpoint could not be uploaded: {error}") from error

    def wait_until_stored(self) -> None:
        """The same for this disk alone: an upload may still be under way."""
        self.stored.result()
        if not self.taken:
            self.taken = True
            self.take(self.kept)


@dataclass
class CheckpointKeeper:
    """The checkpoints of one run."""

    config: CheckpointConfig
    run_dir: RunDir
    journal: Journal
    mirror: Mirror | None = None
    attempt: int = 0
    next_number: int = 0
    committed: list[KeptCheckpoint] = field(default_factory=list)
    """What is kept, oldest first; the last is the newest."""
    warnings: list[str] = field(default_factory=list)
    newest_in_memory: Attachment | None = None
    """The newest checkpoint when checkpoints are not to be written to disk."""
    target: CheckpointTarget = field(init=False)
    """Where the ranks put their checkpoints."""
    wake: Callable[[], None] = lambda: None
    """Called in another thread when a commit is done: the driver may be waiting for news."""
    _pool: BackgroundPool = field(default_factory=lambda: BackgroundPool("paceline-checkpoints", threads=3))
    _under_way: list[Commit] = field(default_factory=list)
    """Commits that nobody has checked yet, oldest first."""
    _unfinished_uploads: dict[int, Commit] = field(default_factory=dict)
    """By checkpoint number, those that failed among them."""
    _deletions: dict[int, Future[None]] = field(default_factory=dict)
    _remote_deletions: dict[int, Future[None]] = field(default_factory=dict)
    _given_up: bool = False
    _damaged: list[str] = field(default_factory=list)
    _pinned: set[tuple[int, object]] = field(default_factory=set)
    """Numbers of checkpoints that another run is copying, in a thread of its own, each with a token."""
    _warned_of_score: bool = False
    _told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.target = choose_target(self.run_dir, self.mirror, in_memory=self.in_memory, shares_files=True)

    def work_with(self, engine: Engine) -> None:
        """The ranks will be that engine's."""
        self.wake = engine.wake
        shares_files = engine.capabilities.shares_filesystem
        self.target = choose_target(self.run_dir, self.mirror, in_memory=self.in_memory, shares_files=shares_files)

    @property
    def newest(self) -> KeptCheckpoint | None:
        return self.committed[-1] if self.committed else None

    @property
    def in_memory(self) -> bool:
        return self.config.num_to_keep == 0

    # -- committing -----------------------------------------------------------------------

    def commit(
        self,
        staged: StagedCheckpoint,
        parts: Mapping[int, StagedCheckpoint],
        iteration: int,
        row: Mapping[str, Any],
        data: Mapping[str, Any] | None = None,
        target: CheckpointTarget | None = None,
    ) -> Commit:
        """Begin to make rank 0's staged checkpoint, with the other ranks' parts, a committed one."""
        kept = KeptCheckpoint(staged.number, iteration, staged.score, row, staged.size)
        self.next_number = kept.number + 1
        target = target or self.target
        stored = self._pool.submit(partial(self._store, target, kept, {0: staged, **parts}, data, self.attempt), _LOCAL)
        upload: Future[None] | None = None
        if self.mirror is not None:
            upload = self._pool.submit(partial(self._upload, target, kept.number, stored), _REMOTE)
        commit = Commit(kept, stored, upload, self._take)
        if upload is not None:
            self._unfinished_uploads[kept.number] = commit
        self._under_way.append(commit)
        (upload or stored).add_done_callback(lambda _future: self.wake())
        return commit

    def _store(
        self,
        target: CheckpointTarget,
        kept: KeptCheckpoint,
        staged: Mapping[int, StagedCheckpoint],
        data: Mapping[str, Any] | None,
        attempt: int,
    ) -> None:
        self.journal.sync()  # the rows up to this checkpoint must be there whenever it is
        target.commit(kept.number, attempt, staged, data)
        self.journal.append(
            CheckpointCommitted(
                number=kept.number,
                iteration=kept.iteration,
                attempt=attempt,
                score=kept.score,
                size=kept.size,
                # A config may hold anything (functions, arrays): the journal takes what is plain data.
                row={**kept.row, "config": plain_config(kept.row.get("config"))},
            ),
            finite=False,
        )
        self.journal.sync()

    def wait_for_commits(self) -> None:
        """Wait until what is being committed is on this disk, or has failed; for any thread."""
        wait([commit.stored for commit in self._under_way])

    def settle(self) -> None:
        """An attempt is over: what it was committing counts once it is on this disk, though nobody waits for it."""
        under_way, self._under_way = self._under_way, []
        for commit in under_way:
            with contextlib.suppress(Exception):  # the attempt failed anyway
                commit.wait_until_stored()
        self._pool.submit(partial(self.target.abandon, self.attempt), _REMOTE)

    def adopt(self, checkpoint: Checkpoint, iteration: int, row: Mapping[str, Any], copied_from: str) -> Commit:
        """Make a copy of another run's checkpoint the newest one of this run."""
        number = self.next_number
        facts = {"timestamp": int(time.time()), "number": number, "iteration": iteration}
        with Stager(self.run_dir.staging(number, self.attempt)) as stager:
            checkpoint.write_files(stager, report=facts)
            manifest = stager.finish(
                {
                    "number": number,
                    "iteration": iteration,
                    "attempt": self.attempt,
                    "score": None,
                    "metrics": {},
                    "created": time.time(),
                    "elapsed": 0.0,
                    "copied_from": copied_from,
                }
            )
            staged = StagedCheckpoint(os.fsencode(stager.directory), number, manifest.size, None)
            commit = self.commit(staged, {}, iteration, row, target=SharedPath(self.run_dir))
            commit.wait_until_stored()
            return commit

    def pin(self, number: int) -> Callable[[], None]:
        """Keep a checkpoint until the function that is returned has been called."""
        pin = (number, object())
        self._pinned.add(pin)
        return partial(self._pinned.discard, pin)

    def commit_in_memory(
        self,
        staged: StagedCheckpoint,
        attachment: Attachment,
        iteration: int,
        row: Mapping[str, Any],
        data: Mapping[str, Any] | None = None,
    ) -> Commit:
        """Hold the newest checkpoint in memory; nothing is written to disk."""
        self.newest_in_memory = attachment
        self.committed.clear()
        stored: Future[None] = Future()
        stored.set_result(None)
        kept = KeptCheckpoint(staged.number, iteration, staged.score, row, staged.size, data)
        self.next_number = kept.number + 1
        return Commit(kept, stored, None, self._take)

    def _take(self, kept: KeptCheckpoint) -> None:
        self._under_way = [commit for commit in self._under_way if commit.kept is not kept]
        self.committed.append(kept)
        if lacks_score(self.config, kept) and not self._warned_of_score:
            self._warned_of_score = True
            self.warnings.append(
                f"checkpoint_score_attribute {self.config.checkpoint_score_attribute!r} was not reported with "
                f"checkpoint {kept.number}; such checkpoints rank worst."
            )

    def _upload(self, target: CheckpointTarget, number: int, stored: Future[None]) -> None:
        assert self.mirror is not None
        stored.result()
        if not target.is_remote:
            self.mirror.push_checkpoint(number)
        if not self._given_up:  # afterwards the store may belong to another driver
            self.mirror.push_state()

    # -- retention ------------------------------------------------------------------------

    def retire(self, reached: Sequence[int] = ()) -> None:
        """Delete what is no longer among the kept ones; the newest and the best always stay.

        `reached` is the last report of each rank at work: what a slow rank sees as the newest
        checkpoint, and may be reading, stays until it has reported a newer one.
        """
        self._look_after_deletions()
        self._look_after_uploads()
        self._look_after_remote_deletions()
        if not self.config.num_to_keep or not self.committed:
            return
        numbers = {kept.number for kept in best(self.config, self.committed)} | {self.committed[-1].number}
        numbers.update(number for number, _ in list(self._pinned))
        for index in set(reached):
            numbers.update([kept.number for kept in self.committed if kept.iteration <= index][-1:])
        gone = [kept for kept in self.committed if kept.number not in numbers]
        self.committed = [kept for kept in self.committed if kept.number in numbers]
        for kept in gone:
            self.journal.append(CheckpointRetired(number=kept.number))
            self.journal.flush()
            self._discard_remotely(kept.number)
            self._discard(kept.number)

    def _discard(self, number: int) -> None:
        path = self.run_dir.checkpoint(number)
        if self.mirror is None or path.exists():
            # In the order of the commits: a number that goes by the iteration may be used again.
            trash = self._pool.submit(partial(storage_commit.to_trash, path), _LOCAL)
            self._deletions[number] = self._pool.submit(partial(_delete, trash), _DELETIONS)

    def _discard_remotely(self, number: int) -> None:
        if self.mirror is not None:
            self._unfinished_uploads.pop(number, None)
            remove = partial(self.mirror.remove_checkpoint, number)
            self._remote_deletions[number] = self._pool.submit(remove, _REMOTE)

    def _look_after_uploads(self) -> None:
        """Who waits for a commit raises what went wrong; of the others only those under way are remembered."""
        for number, commit in list(self._unfinished_uploads.items()):
            if commit.done and _why_not_uploaded(commit) is None:
                del self._unfinished_uploads[number]

    def _look_after_deletions(self, again: bool = True) -> None:
        for number, deletion in list(self._deletions.items()):
            if not deletion.done():
                continue
            del self._deletions[number]
            error = None if deletion.cancelled() else deletion.exception()
            if isinstance(error, _NotDeletedError):
                self._warn_once(f"{error.path.name} could not be deleted and is tried again later: {error.reason}")
                if again:
                    self._deletions[number] = self._pool.submit(partial(_delete_trash, error.path), _DELETIONS)
            elif error is not None:
                self._warn_once(f"checkpoint {number} could not be deleted: {error}")

    def _look_after_remote_deletions(self, again: bool = True) -> None:
        for number, deletion in list(self._remote_deletions.items()):
            if not deletion.done():
                continue
            del self._remote_deletions[number]
            error = None if deletion.cancelled() else deletion.exception()  # a restore finishes what was cancelled
            if error is not None:
                later = "tried again later" if again else "removed when the run is restored"
                self._warn_once(f"checkpoint {number} could not be deleted remotely and is {later}: {error}")
                if again:
                    self._discard_remotely(number)

    # -- reading --------------------------------------------------------------------------

    def reference(self, kept: KeptCheckpoint) -> Checkpoint:
        """The checkpoint as users get it."""
        if self.in_memory:
            assert self.newest_in_memory is not None
            checkpoint = Checkpoint.from_attachment(self.newest_in_memory)
            checkpoint._data_state = kept.data
            return checkpoint
        path = self.run_dir.checkpoint(kept.number)
        if self.mirror is not None and not path.exists():  # of an earlier driver elsewhere: fetched when it is used
            store = self.mirror.filesystem
            return Checkpoint(f"{store.label}/{path.name}", store.given)
        return checkpoint_at(path, self._warn_once)

    def newest_checkpoint(self) -> Checkpoint | None:
        """None if there is none, or if somebody has deleted it."""
        with contextlib.suppress(StorageError):
            return self.reference(self.newest) if self.newest is not None else None
        return None

    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The best ones from worst to best, with the rows they were reported with."""
        found: list[tuple[Checkpoint, dict[str, Any]]] = []
        for kept in [] if self.in_memory else best(self.config, self.committed):
            with contextlib.suppress(StorageError):
                found.append((self.reference(kept), dict(kept.row)))
        return found

    def newest_valid(self) -> KeptCheckpoint | None:
        """The newest checkpoint whose content matches its manifest; damaged ones are set aside."""
        while (newest := self.newest) is not None and not self.in_memory:
            path = self.run_dir.checkpoint(newest.number)
            try:
                if self.mirror is not None and not path.exists():
                    self.mirror.pull_checkpoint(newest.number, path)
                else:
                    verify(path)
                return newest
            except (CheckpointCorruptError, CheckpointNotFoundError, FileNotFoundError) as error:
                self.committed.pop()
                self._set_aside(newest.number, str(error))
        if self._damaged and self.newest is None:
            raise CheckpointCorruptError(
                f"none of the run's checkpoints is sound: {', '.join(self._damaged)}. They were set aside under these "
                f"names in {self.run_dir.root}. Start a new run, from resume_from_checkpoint=... if you have a copy."
            )
        return self.newest

    def _set_aside(self, number: int, reason: str) -> None:
        path = self.run_dir.checkpoint(number)
        if path.exists() or self.mirror is None:
            place = storage_commit.quarantine(path) if path.exists() else path
            self._damaged.append(place.name)
            self.warnings.append(f"{path.name} is damaged and was set aside as {place.name}: {reason}")
        else:
            self._damaged.append(path.name)
            self.warnings.append(f"{path.name} in {self.mirror.filesystem.label} is damaged and not used: {reason}")
        self.journal.append(CheckpointRetired(number=number, reason="damaged"))
        self.journal.sync()

    def load(self, records: RunRecords | Sequence[Record]) -> None:
        """Take over the checkpoints of an earlier driver and finish the deletions it had begun."""
        on_disk = dict(self.run_dir.checkpoints())
        remote = self._remote_numbers()
        present: dict[int, Path | None] = dict.fromkeys(remote)
        present.update(on_disk)
        self.committed = still_kept(records, present)
        self.next_number = max(mentioned_numbers(records) | present.keys(), default=-1) + 1
        for number in sorted(deleted_numbers(records) & set(on_disk)):
            self._discard(number)
        wait(self._deletions.values())
        for number in sorted((deleted_numbers(records) - damaged_numbers(records)) & set(remote)):
            self._discard_remotely(number)
        listed = listed_numbers(records)
        for number in sorted(listed - set(present)):
            path = self.run_dir.checkpoint(number)
            if path.exists():
                self._set_aside(number, "its manifest is gone")
            elif number == max(listed):
                self.warnings.append(f"{path.name} is gone, although it is the newest one that the journal lists.")

    def continue_after(self, checkpoint: Checkpoint) -> None:
        """Number on from the checkpoint that a new run starts from; a damaged one is refused here."""
        if checkpoint.kind == "local_path" and (Path(str(checkpoint.path)) / MANIFEST_NAME).exists():
            verify(Path(str(checkpoint.path)))
        self.next_number = 0 if checkpoint.number is None else checkpoint.number + 1

    def _remote_numbers(self) -> list[int]:
        return list(self.mirror.checkpoint_numbers()) if self.mirror is not None else []

    def close(self, complete: bool = True) -> None:
        """Wait for uploads; let go what is in memory, unless a result holds it.

        With complete=False (an interruption) what is still to be uploaded is given up. `warnings` says what went wrong.
        """
        if not complete:
            self._given_up = True
            if self.mirror is not None:
                self.mirror.give_up_uploads()
            self.wait_for_commits()
            self._pool.cancel()
        self._pool.close(None if complete else 0)
        self._look_after_deletions(again=False)
        self._look_after_remote_deletions(again=False)
        for number, commit in self._unfinished_uploads.items():
            if (problem := _why_not_uploaded(commit)) is not None and self.mirror is not None:
                name, label = self.run_dir.checkpoint(number).name, self.mirror.filesystem.label
                self._warn_once(f"{name} is not in {label}, only in {self.run_dir.root}: {problem}")
        self._unfinished_uploads.clear()
        self.target.close()
        self.newest_in_memory = None

    def _warn_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.warnings.append(text)


def _why_not_uploaded(commit: Commit) -> str | None:
    """None if it is uploaded, or if there is nothing to upload."""
    upload = commit.upload
    if upload is None:
        return None
    if upload.cancelled() or not upload.done():
        return "its upload was given up because the run was interrupted"
    error = upload.exception()
    return None if error is None or commit.stored.exception() is not None else str(error)


class _NotDeletedError(Exception):
    """What is left of a checkpoint that was renamed to trash, and why."""

    def __init__(self, path: Path, reason: OSError) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


def _delete(trash: Future[Path]) -> None:
    _delete_trash(trash.result())


def _delete_trash(trash: Path) -> None:
    try:
        storage_commit.delete_tree(trash)
    except OSError as error:
        raise _NotDeletedError(trash, error) from error
