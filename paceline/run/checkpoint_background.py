"""What happens to checkpoints in the background: commits, uploads and deletions that are under way."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paceline.air.background_pool import BackgroundPool
from paceline.air.errors import StorageError
from paceline.run.retention import KeptCheckpoint
from paceline.storage import commit as storage_commit
from paceline.storage.mirror import Mirror
from paceline.storage.outage import outlast
from paceline.storage.run_dir import RunDir

COMMITS, STORE, _TRASH = "commits", "store", "trash"
"""What the keeper's threads do: within each of them the order is kept; they do not wait for each other."""


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


class CheckpointBackground:
    """The threads that work for a keeper, and what they have under way."""

    def __init__(self, run_dir: RunDir, mirror: Mirror | None, warn: Callable[[str], None]) -> None:
        self._pool = BackgroundPool("paceline-checkpoints", threads=3)
        self.submit = self._pool.submit
        self.uploads = None if mirror is None else Uploads(run_dir, mirror, self._pool)
        self.deletions = Deletions(run_dir, mirror, self._pool, warn)
        self._warn = warn

    def retire(self, number: int) -> None:
        """Delete a checkpoint wherever it is; whether it was ever uploaded is of no interest any more."""
        if self.uploads is not None:
            self.uploads.forget(number)
        self.deletions.discard_remotely(number)
        self.deletions.discard(number)

    def share_journal(self) -> None:
        """Let the run's storage know soon what the journal says. If it fails, the next checkpoint finds out."""
        if self.uploads is not None:
            self.submit(self.uploads.push_state, STORE)

    def give_up_uploads(self) -> None:
        """What is under way never becomes a checkpoint there."""
        if self.uploads is not None:
            self.uploads.give_up()

    def close(self, *, complete: bool) -> None:
        """Wait for everything, or drop what has not begun; warns of what went wrong."""
        if not complete:
            self._pool.cancel()
        self._pool.close(None if complete else 0)
        self.deletions.look_after(again=False)
        for problem in self.uploads.problems() if self.uploads is not None else []:
            self._warn(problem)


class Uploads:
    """Of committed checkpoints to the run's storage."""

    def __init__(self, run_dir: RunDir, mirror: Mirror, pool: BackgroundPool) -> None:
        self._run_dir = run_dir
        self._mirror = mirror
        self._pool = pool
        self._given_up = threading.Event()
        self._unfinished: dict[int, tuple[Future[None], Future[None]]] = {}
        """By number, the commit and the upload; those that failed among them."""

    def begin(self, number: int, stored: Future[None], is_there: bool) -> Future[None]:
        """Upload a checkpoint once it is stored here, and what is new in the journal."""
        for old, (_, upload) in list(self._unfinished.items()):
            if upload.done() and not upload.cancelled() and upload.exception() is None:
                del self._unfinished[old]
        upload = self._pool.submit(partial(self._upload, number, stored, is_there), STORE)
        self._unfinished[number] = (stored, upload)
        return upload

    def _upload(self, number: int, stored: Future[None], is_there: bool) -> None:
        stored.result()
        if not is_there:
            self._outlast_outages(partial(self._mirror.push_checkpoint, number))
        self._outlast_outages(self.push_state)

    def _outlast_outages(self, operation: Callable[[], None]) -> None:
        outlast(operation, self._mirror.lease.patience_s, self._given_up)

    def push_state(self) -> None:
        """Upload what is new in the journal, and what is written beside it."""
        if not self._given_up.is_set():  # afterwards the store may belong to another driver
            self._mirror.push_state()

    def forget(self, number: int) -> None:
        """The checkpoint is not kept: whether it was ever uploaded is of no interest."""
        self._unfinished.pop(number, None)

    def give_up(self) -> None:
        """What is under way never becomes a checkpoint there."""
        self._given_up.set()
        self._mirror.give_up_uploads()

    def problems(self) -> list[str]:
        """Which checkpoints did not get there, and why; to be asked in the end."""
        found = []
        for number, (stored, upload) in self._unfinished.items():
            name, label = self._run_dir.checkpoint(number).name, self._mirror.filesystem.label
            if not stored.done() or stored.cancelled():
                found.append(f"{name} was not committed: the run was interrupted, and {label} did not answer in time")
                continue
            if upload.cancelled() or not upload.done():
                problem = "its upload was given up because the run was interrupted"
            elif upload.exception() is None or stored.exception() is not None:
                continue
            else:
                problem = str(upload.exception())
            found.append(f"{name} is not in {label}, only in {self._run_dir.root}: {problem}")
        self._unfinished.clear()
        return found


class Deletions:
    """Renamed to trash first, in the order of the commits, then removed. What failed is tried again by `look_after`."""

    def __init__(
        self, run_dir: RunDir, mirror: Mirror | None, pool: BackgroundPool, warn: Callable[[str], None]
    ) -> None:
        self._run_dir = run_dir
        self._mirror = mirror
        self._pool = pool
        self._warn = warn
        self._here: dict[int, Future[None]] = {}
        self._remotely: dict[int, Future[None]] = {}
        self._has_warned = False

    def discard(self, number: int) -> None:
        """Delete a checkpoint on this disk."""
        path = self._run_dir.checkpoint(number)
        if self._mirror is None or path.exists():
            # In the order of the commits: a number that goes by the iteration may be used again.
            trash = self._pool.submit(partial(storage_commit.to_trash, path), COMMITS)
            self._here[number] = self._pool.submit(lambda: _delete(trash.result()), _TRASH)

    def discard_remotely(self, number: int) -> None:
        if self._mirror is not None:
            self._remotely[number] = self._pool.submit(partial(self._mirror.remove_checkpoint, number), STORE)

    def wait(self) -> None:
        """Until what is to be deleted on this disk is, or could not be."""
        wait_for(self._here.values())

    def look_after(self, *, again: bool = True) -> None:
        """Warn of what could not be deleted, and begin once more with it."""
        for number, error in _failed(self._here):
            trash = error.trash if isinstance(error, _TrashLeftError) else None
            if not self._has_warned:
                self._has_warned = True
                name = (trash or self._run_dir.checkpoint(number)).name
                self._warn(
                    f"{name} is no longer kept and could not be deleted: {error}. This is tried again with each "
                    "checkpoint, and when the run is restored. Further deletions that fail are not reported."
                )
            if again and trash is not None:
                self._here[number] = self._pool.submit(partial(_delete, trash), _TRASH)
            elif again and getattr(error, "errno", None) != errno.ENOENT:
                self.discard(number)  # no newer checkpoint can have its name while it is there
        for number, error in _failed(self._remotely):
            later = "tried again later" if again else "removed when the run is restored"
            self._warn(f"checkpoint {number} could not be deleted remotely and is {later}: {error}")
            if again:
                self.discard_remotely(number)


def _failed(deletions: dict[int, Future[None]]) -> list[tuple[int, BaseException]]:
    """Take out what is done; what was cancelled is finished by a restore."""
    done = {number: deletion for number, deletion in deletions.items() if deletion.done()}
    for number in done:
        del deletions[number]
    errors = {number: deletion.exception() for number, deletion in done.items() if not deletion.cancelled()}
    return [(number, error) for number, error in errors.items() if error is not None]


class _TrashLeftError(Exception):
    """What was renamed and could not be removed, and why."""

    def __init__(self, trash: Path, reason: OSError) -> None:
        super().__init__(str(reason))
        self.trash = trash


def _delete(trash: Path) -> None:
    try:
        storage_commit.delete_tree(trash)
    except OSError as error:
        raise _TrashLeftError(trash, error) from error
