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
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from paceline.air.attachment import Attachment
from paceline.air.checkpoint import Checkpoint
from paceline.air.config import CheckpointConfig
from paceline.air.errors import CheckpointCorruptError, CheckpointNotFoundError, StorageError
from paceline.air.faults import fault_point
from paceline.air.manifest import verify
from paceline.air.settings import plain_config
from paceline.run.checkpoint_background import COMMITS, STORE, CheckpointBackground, Commit
from paceline.run.checkpoint_target import CheckpointTarget, Reply, SharedPath, choose_target
from paceline.run.messages import MOST_IN_FLIGHT, CheckpointFiles, CheckpointWanted, ForTarget, StagedCheckpoint
from paceline.run.pins import Pins
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


@dataclass
class CheckpointKeeper:
    """The checkpoints of one run."""

    config: CheckpointConfig
    run_dir: RunDir
    journal: Journal
    mirror: Mirror | None = None
    shares_files: bool = True
    """The ranks of the attempt see the run's directory."""
    wake: Callable[[], None] = lambda: None
    """Called in another thread when a commit is done: the driver may be waiting for news."""
    attempt: int = 0
    next_number: int = 0
    committed: list[KeptCheckpoint] = field(default_factory=list)
    """What is kept, oldest first; the last is the newest."""
    warnings: list[str] = field(default_factory=list)
    newest_in_memory: Attachment | None = None
    """The newest checkpoint when checkpoints are not to be written to disk."""
    awaited: set[int] = field(default_factory=set)
    """Checkpoints whose validation is pending: they stay until their score is known."""
    _under_way: list[Commit] = field(default_factory=list)
    """Commits that nobody has checked yet, oldest first."""
    _damaged: list[str] = field(default_factory=list)
    _pins: Pins = field(default_factory=Pins)
    _warned_of_score: bool = False
    _is_closed: bool = False
    _told: set[str] = field(default_factory=set)

    @cached_property
    def target(self) -> CheckpointTarget:
        """Where the ranks put their checkpoints."""
        return choose_target(self.run_dir, self.mirror, in_memory=self.in_memory, shares_files=self.shares_files)

    def choose_target(self, shares_files: bool) -> CheckpointTarget:
        """For the next attempt: its workers may be elsewhere than those of the last one."""
        if shares_files != self.shares_files:
            if "target" in vars(self):
                self.target.close()
                del self.target
            self.shares_files = shares_files
        return self.target

    @cached_property
    def background(self) -> CheckpointBackground:
        """Made when there is something to do for it."""
        if self._is_closed:  # a launch that nobody waited for: another driver may be at work in this directory
            raise RuntimeError("the run is closed")
        return CheckpointBackground(self.run_dir, self.mirror, self._warn_once)

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
        in_memory: Attachment | None = None,
        target: CheckpointTarget | None = None,
    ) -> Commit:
        """Begin to make rank 0's staged checkpoint, with the other ranks' parts, a committed one.

        One that is `in_memory` only is committed at once.
        """
        self.next_number = staged.number + 1
        size = sum(part.size for part in (staged, *parts.values()))
        if in_memory is not None:
            return self._hold(KeptCheckpoint(staged.number, iteration, staged.score, row, size, data), in_memory)
        kept = KeptCheckpoint(staged.number, iteration, staged.score, row, size)
        target = target or self.target
        work = partial(self._store, target, kept, {0: staged, **parts}, data, self.attempt)
        stored = self.background.submit(work, COMMITS)
        uploads = self.background.uploads
        upload = None if uploads is None else uploads.begin(kept.number, stored, target.is_remote)
        commit = Commit(kept, stored, upload, self._take)
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
        self.journal.append(_record_of(kept, attempt), finite=False)
        self.journal.sync()
        fault_point("checkpoint_committed", path=self.run_dir.checkpoint(kept.number), step=kept.iteration)

    def wait_for_commits(self) -> None:
        """Wait until what is being committed is on this disk, or has failed; for any thread."""
        wait([commit.stored for commit in self._under_way])

    def settle(self, store_wait_s: float | None = None) -> None:
        """An attempt is over: what it was committing counts once it is on this disk, though nobody waits for it.

        Where the ranks upload it themselves, it counts once it is in the store. The store gets `store_wait_s` seconds
        (None: as long as it needs), and what is not there by then is given up.
        """
        under_way, self._under_way = self._under_way, []
        stored = [commit.stored for commit in under_way]
        if wait(stored, store_wait_s if self.target.is_remote else None).not_done:
            self.background.give_up_uploads()
        for commit in under_way:
            if commit.stored.done():
                with contextlib.suppress(Exception):  # the attempt failed anyway
                    commit.wait_until_stored()
        if self.target.is_remote:
            self.background.submit(partial(self.target.abandon, self.attempt), STORE)
        else:  # at once: the next attempt may send something soon
            self.target.abandon(self.attempt)

    def adopt(self, checkpoint: Checkpoint, iteration: int, row: Mapping[str, Any], copied_from: str) -> Commit:
        """Make a copy of another run's checkpoint the newest one of this run."""
        staged = _staged_copy(checkpoint, self.run_dir, self.next_number, iteration, self.attempt, copied_from)
        commit = self.commit(staged, {}, iteration, row, target=SharedPath(self.run_dir))
        commit.wait_until_stored()
        return commit

    def pin(self, number: int) -> Callable[[], None]:
        """Keep a checkpoint until the function that is returned has been called."""
        return self._pins.pin(number)

    def _hold(self, kept: KeptCheckpoint, attachment: Attachment) -> Commit:
        """Keep the newest checkpoint in memory; nothing is written to disk."""
        self.newest_in_memory = attachment
        self.committed.clear()
        stored: Future[None] = Future()
        stored.set_result(None)
        commit = Commit(kept, stored, None, self._take)
        self._under_way.append(commit)
        return commit

    def _take(self, kept: KeptCheckpoint) -> None:
        self._under_way = [commit for commit in self._under_way if commit.kept is not kept]
        self.committed.append(kept)
        if kept.number not in self.awaited:
            self._warn_without_score(kept)

    def _warn_without_score(self, kept: KeptCheckpoint) -> None:
        if lacks_score(self.config, kept) and not self._warned_of_score:
            self._warned_of_score = True
            self.warnings.append(
                f"checkpoint_score_attribute {self.config.checkpoint_score_attribute!r} was not reported with "
                f"checkpoint {kept.number}; such checkpoints rank worst."
            )

    def has(self, number: int) -> bool:
        """Whether a checkpoint is committed and kept."""
        return any(kept.number == number for kept in self.committed)

    def validated(self, number: int, metrics: Mapping[str, Any] | None) -> None:
        """The validation of a checkpoint is over; None: it failed, and there will be no score. Call `retire` next."""
        self.awaited.discard(number)
        for place, kept in enumerate(self.committed):
            if kept.number == number:
                if metrics is not None:
                    self.committed[place] = kept = kept.validated(metrics)
                self._warn_without_score(kept)

    # -- retention ------------------------------------------------------------------------

    def retire(self, reached: Sequence[int] = ()) -> None:
        """Delete what is no longer among the kept ones, except the newest, the best, what ranks may be reading, and
        what is to be validated. What another run is copying is deleted afterwards.

        `reached` is the last report of each rank; with async_save it may have looked when newer ones were in flight.
        """
        if "background" in vars(self):
            self.background.deletions.look_after()
        self._delete_released()
        if not self.config.num_to_keep or not self.committed:
            return
        numbers = {kept.number for kept in best(self.config, self.committed)} | {self.committed[-1].number}
        numbers |= self.awaited
        readable = 1 + (MOST_IN_FLIGHT if self.config.async_save else 0)
        for index in set(reached):
            numbers.update([kept.number for kept in self.committed if kept.iteration <= index][-readable:])
        gone = [kept for kept in self.committed if kept.number not in numbers]
        self.committed = [kept for kept in self.committed if kept.number in numbers]
        for kept in gone:
            self.journal.append(CheckpointRetired(number=kept.number))
            self.journal.flush()
            self._pins.put_off(kept.number)
        self._delete_released()

    def _delete_released(self) -> None:
        for number in self._pins.released():
            self.background.retire(number)

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
        for kept in best(self.config, self.committed) if self.committed and not self.in_memory else []:
            with contextlib.suppress(StorageError):
                found.append((self.reference(kept), dict(kept.row)))
        return found

    def received(self, rank: int, message: ForTarget, attachments: tuple[Attachment, ...], reply: Reply) -> None:
        """A rank that does not see the driver's disk sends a part of a checkpoint, or asks for one."""
        if isinstance(message, CheckpointWanted) and message.all_kept:
            kept = sorted(best(self.config, self.committed), key=lambda kept: kept.number)
            reply(rank, CheckpointFiles(None, kept=[(each.number, _plain_row(each)) for each in kept]), ())
        else:
            self.target.received(rank, message, attachments, reply)

    @property
    def damaged(self) -> list[str]:
        """The names of the checkpoints that this driver has set aside."""
        return list(self._damaged)

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
        deletions = self.background.deletions
        for number in sorted(deleted_numbers(records) & set(on_disk)):
            deletions.discard(number)
        deletions.wait()
        for number in sorted((deleted_numbers(records) - damaged_numbers(records)) & set(remote)):
            deletions.discard_remotely(number)
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
        if "background" in vars(self) and complete:
            self._leave_the_rest_to_copies()
        self._is_closed = True
        if "background" in vars(self):
            if not complete:
                self.background.give_up_uploads()
                if not self.target.is_remote:  # a store may hang
                    self.wait_for_commits()
            self.background.close(complete=complete)
        self.target.close()
        self.newest_in_memory = None

    def _leave_the_rest_to_copies(self) -> None:
        """The search that this run belongs to may still be copying a checkpoint for another of its runs."""
        self._delete_released()
        for number in self._pins.outlast(self._delete_after_close):
            if self.run_dir.checkpoint(number).exists():  # It is copied from here.
                self.background.deletions.discard_remotely(number)

    def _delete_after_close(self, number: int) -> None:
        with contextlib.suppress(OSError):  # The journal says that it can go.
            storage_commit.delete_tree(storage_commit.to_trash(self.run_dir.checkpoint(number)))

    def _warn_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.warnings.append(text)


def _record_of(kept: KeptCheckpoint, attempt: int) -> CheckpointCommitted:
    return CheckpointCommitted(
        number=kept.number,
        iteration=kept.iteration,
        attempt=attempt,
        score=kept.score,
        size=kept.size,
        row=_plain_row(kept),
        time=time.time(),
    )


def _plain_row(kept: KeptCheckpoint) -> dict[str, Any]:
    """A config may hold anything (functions, arrays): what is written or sent is plain data."""
    return {**kept.row, "config": plain_config(kept.row.get("config"))}


def _staged_copy(
    checkpoint: Checkpoint, run_dir: RunDir, number: int, iteration: int, attempt: int, copied_from: str
) -> StagedCheckpoint:
    """Another run's checkpoint, ready to be committed as one of this run."""
    now = time.time()
    facts: dict[str, Any] = {"attempt": attempt, "score": None, "metrics": {}, "created": now, "elapsed": 0.0}
    with Stager(run_dir.staging(number, attempt)) as stager:
        report = {"timestamp": int(now), "number": number, "iteration": iteration}
        checkpoint.write_files(stager, report={**report, "loader_epochs": checkpoint.loader_epochs})
        manifest = stager.finish({"number": number, "iteration": iteration, **facts, "copied_from": copied_from})
    return StagedCheckpoint(os.fsencode(stager.directory), number, manifest.size, None)
