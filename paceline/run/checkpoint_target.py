"""Where the ranks of a run put their checkpoints, and how the driver makes committed ones of them.

| kind | a rank puts its files | the driver commits by |
|---|---|---|
| shared path | into the run's directory, under a temporary name | a rename |
| in memory | into an attachment of its report | holding it |
| remote prefix | into the run's storage, below a staging prefix | copying them there; the manifest comes last |
| relayed | through the channel, in pieces that the driver writes into the run's directory | a rename |

The last two are for ranks that do not see the driver's disk; which one, the run's storage decides. rank_target.py is
the worker's half. Session, stager and keeper know nothing but the target.
"""

from __future__ import annotations

import contextlib
import json
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from paceline.air.attachment import Attachment
from paceline.air.background_pool import BackgroundPool
from paceline.air.constants import CHECKPOINT_DATA_FILE
from paceline.air.errors import CheckpointCorruptError, CheckpointError, StorageError
from paceline.air.manifest import SAFE_PERMISSIONS, Manifest, is_inside, manifest_name, parse_manifest
from paceline.air.packing import tree
from paceline.run import messages
from paceline.run.messages import (
    CheckpointFile,
    CheckpointFiles,
    CheckpointPiece,
    CheckpointWanted,
    Printed,
    StagedCheckpoint,
    ToWorker,
)
from paceline.run.worker import open_text
from paceline.storage import commit as storage_commit
from paceline.storage.files import delete_tree
from paceline.storage.mirror import Mirror
from paceline.storage.run_dir import MANIFEST_NAME, RunDir
from paceline.storage.stager import Stager

_MOST_PIECES = 8
"""Of one rank, that may wait for the disk; beyond it the driver waits, and with it the rank that sends them."""

Reply = Callable[[int, ToWorker, tuple[Attachment, ...]], None]


class CheckpointTarget(ABC):
    """How checkpoints get from the ranks to where they are kept. `commit` is called in the background.

    Ranks that do not see what is on the driver's disk ask for the checkpoints that they want to read.
    """

    is_remote = False
    """What is committed is in the run's storage, and not on the driver's disk."""
    start: Path | None = None
    """The directory that the attempt starts from."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir

    @abstractmethod
    def for_ranks(self) -> messages.TargetSetup:
        """What the ranks are told about it."""

    @abstractmethod
    def commit(
        self, number: int, attempt: int, staged: Mapping[int, StagedCheckpoint], data: Mapping[str, Any] | None
    ) -> None:
        """Make what the ranks have staged, and where they are in their datasets, the checkpoint of this number."""

    def prepare(self, start: Path | None) -> None:
        """An attempt is about to start, from this directory; what earlier ones have staged is of no use to anybody."""
        self.start = start

    def uri_of(self, number: int) -> str | None:
        """Where ranks that do not see the driver's disk find a committed checkpoint; None: they ask for its files."""
        return None

    def received(
        self, rank: int, message: messages.ForTarget, attachments: tuple[Attachment, ...], reply: Reply
    ) -> None:
        """A rank elsewhere sends a part of a checkpoint, or asks for one."""
        if isinstance(message, CheckpointWanted):
            if message.name is None:
                reply(rank, self._files(message.number), ())
            else:
                reply(rank, CheckpointFiles(message.number), self._piece(message, os.fsdecode(message.name)))
        elif isinstance(message, Printed):
            with open_text(self._run_dir.root / Path(message.name).name) as copy:
                copy.write(message.text)

    def _files(self, wanted: int | None) -> CheckpointFiles:
        number, path = self._where(wanted)
        if path is None:
            return CheckpointFiles(None)
        try:
            return CheckpointFiles(number, _listed(path))
        except (OSError, CheckpointError) as error:  # it may be deleted meanwhile, in another thread
            return CheckpointFiles(None, problem=str(error))

    def _where(self, number: int | None) -> tuple[int | None, Path | None]:
        if number is None:
            return None, self.start
        path = self._run_dir.checkpoint(number)
        if path.exists():
            return number, path
        present = self._run_dir.checkpoints()
        return present[-1] if present else (None, None)

    def _piece(self, wanted: CheckpointWanted, name: str) -> tuple[Attachment, ...]:
        """Of the checkpoint whose files were listed, and of no newer one: nothing, if it was deleted meanwhile."""
        folder = self.start if wanted.number is None else self._run_dir.checkpoint(wanted.number)
        if folder is None or not is_inside(manifest_name(name)):
            return ()
        try:
            with open(folder / name, "rb") as file:
                file.seek(wanted.offset)
                content = file.read(wanted.most)
        except OSError:
            return ()
        return (Attachment(content),) if content else ()

    def abandon(self, attempt: int) -> None:  # noqa: B027  (optional)
        """An attempt is over: what was staged and not committed is of no use to anybody."""

    def close(self) -> None:  # noqa: B027  (optional)
        """Give back threads and files."""


def choose_target(run_dir: RunDir, mirror: Mirror | None, *, in_memory: bool, shares_files: bool) -> CheckpointTarget:
    """By whether the ranks see the run's directory, and by the run's storage."""
    if in_memory:
        return InMemory(run_dir)
    if shares_files:
        return SharedPath(run_dir)
    return Relayed(run_dir) if mirror is None else RemotePrefix(run_dir, mirror)


class InMemory(CheckpointTarget):
    """The keeper holds the newest checkpoint, which came with its report."""

    def for_ranks(self) -> messages.TargetSetup:
        return messages.InMemorySetup()

    def commit(
        self, number: int, attempt: int, staged: Mapping[int, StagedCheckpoint], data: Mapping[str, Any] | None
    ) -> None:
        raise AssertionError("nothing is to be stored")


class SharedPath(CheckpointTarget):
    """The ranks write into the run's directory."""

    def for_ranks(self) -> messages.TargetSetup:
        return messages.SharedPathSetup()

    def commit(
        self, number: int, attempt: int, staged: Mapping[int, StagedCheckpoint], data: Mapping[str, Any] | None
    ) -> None:
        paths = {rank: self._staging(rank, part) for rank, part in staged.items()}
        staging = paths.pop(0)
        if paths:
            storage_commit.merge_staged(staging, paths)
        if data is not None:
            storage_commit.add_file(staging, CHECKPOINT_DATA_FILE, json.dumps(data).encode())
        storage_commit.commit(staging, self._run_dir.checkpoint(number))

    def _staging(self, rank: int, staged: StagedCheckpoint) -> Path:
        """The directory with everything that a rank has staged."""
        return Path(os.fsdecode(staged.path))


def _listed(path: Path) -> list[CheckpointFile]:
    found, manifest = [], path / MANIFEST_NAME
    committed = [(MANIFEST_NAME, manifest)] if manifest.is_file() else []
    for name, source in [*tree(path), *committed]:  # with the manifest, so that the rank verifies what arrives
        status = source.stat()
        found.append(CheckpointFile(os.fsencode(name), status.st_size, status.st_mode & 0o777, source.is_dir()))
    return found


class Relayed(SharedPath):
    """The ranks send their files, and the driver writes them into the run's directory."""

    def __init__(self, run_dir: RunDir) -> None:
        super().__init__(run_dir)
        self._pool = BackgroundPool("paceline-relay", threads=2)
        self._arriving: dict[tuple[int, str], _Arrival] = {}
        """By rank and the name that it has given to its staging directory."""
        self._unwritten: dict[int, deque[Future[None]]] = {}

    def for_ranks(self) -> messages.TargetSetup:
        return messages.RelayedSetup()

    def received(
        self, rank: int, message: messages.ForTarget, attachments: tuple[Attachment, ...], reply: Reply
    ) -> None:
        if not isinstance(message, CheckpointPiece):
            super().received(rank, message, attachments, reply)
            return
        key = rank, message.staging
        if key not in self._arriving:
            self._arriving[key] = _Arrival(self._run_dir.staging(0, 0))
        write = partial(self._arriving[key].write, message, attachments)
        unwritten = self._unwritten.setdefault(rank, deque())
        unwritten.append(self._pool.submit(write, key=rank))
        while len(unwritten) > _MOST_PIECES or (unwritten and unwritten[0].done()):
            unwritten.popleft().result()

    def _staging(self, rank: int, staged: StagedCheckpoint) -> Path:
        arrival = self._arriving.pop((rank, staged.path.decode()), None)
        if arrival is None:
            raise CheckpointError(f"rank {rank} has announced a checkpoint that it did not send")
        return self._pool.submit(partial(arrival.finish, rank, staged), key=rank).result()

    def abandon(self, attempt: int) -> None:
        arriving, self._arriving = self._arriving, {}
        for (rank, _), arrival in arriving.items():
            self._pool.submit(arrival.abandon, key=rank)

    def close(self) -> None:
        self.abandon(0)
        self._pool.close()


class _Arrival:
    """A checkpoint that a rank is sending; everything happens in the background, in order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stager: Stager | None = None
        self._file: Any = None
        self._error: Exception | None = None

    def write(self, piece: CheckpointPiece, attachments: tuple[Attachment, ...]) -> None:
        if self._error is not None:
            return
        try:
            self._write(piece, attachments)
        except (OSError, CheckpointError) as error:  # raised when the checkpoint is to be committed
            self._error = error

    def _write(self, piece: CheckpointPiece, attachments: tuple[Attachment, ...]) -> None:
        if self._stager is None:
            self._stager = Stager(self._directory)
        name = os.fsdecode(piece.name)
        if piece.is_directory:
            self._stager.add_empty_directory(name)
            return
        if self._file is None:
            self._file = self._stager.open(name, piece.mode & SAFE_PERMISSIONS | 0o400)
        for attachment in attachments:
            attachment.write_to(self._file)
        if piece.is_last:
            self._file.close()
            self._file = None

    def finish(self, rank: int, staged: StagedCheckpoint) -> Path:
        """The complete staging directory. What was hashed here must be what the rank has hashed."""
        try:
            self._finish(rank, _sent_manifest(rank, staged))
        except BaseException:
            self.abandon()
            raise
        return self._directory

    def _finish(self, rank: int, sent: Manifest) -> None:
        if self._error is not None:
            raise self._error
        with self._stager or Stager(self._directory) as stager:
            written = stager.finish(sent.facts)
        if (written.files, written.empty_directories) != (sent.files, sent.empty_directories):
            difference = _first_difference(sent, written)
            raise CheckpointCorruptError(f"the checkpoint of rank {rank} did not arrive as it was sent: {difference}")

    def abandon(self) -> None:
        if self._stager is not None:
            self._stager.abort()
            delete_tree(self._directory)  # also what was complete, but not as it was sent


def _first_difference(sent: Manifest, written: Manifest) -> str:
    for name in sorted(sent.files.keys() | written.files.keys()):
        if sent.files.get(name) != written.files.get(name):
            return f"{name!r} is {written.files.get(name)} instead of {sent.files.get(name)}"
    return f"its empty directories are {written.empty_directories} instead of {sent.empty_directories}"


class RemotePrefix(CheckpointTarget):
    """The ranks upload into the run's storage."""

    is_remote = True

    def __init__(self, run_dir: RunDir, mirror: Mirror) -> None:
        super().__init__(run_dir)
        self._mirror = mirror

    def for_ranks(self) -> messages.TargetSetup:
        return messages.RemotePrefixSetup(self._mirror.filesystem.uri, _pickled(self._mirror.filesystem.given))

    def commit(
        self, number: int, attempt: int, staged: Mapping[int, StagedCheckpoint], data: Mapping[str, Any] | None
    ) -> None:
        manifests = {rank: _sent_manifest(rank, part) for rank, part in staged.items()}
        merged, owner = storage_commit.merge_manifests(manifests)
        places = {name: f"{staged[rank].path.decode()}/{name}" for name, rank in owner.items()}
        added = {} if data is None else {CHECKPOINT_DATA_FILE: json.dumps(data).encode()}
        self._mirror.commit_staged(number, attempt, merged, places, added)

    def prepare(self, start: Path | None) -> None:
        super().prepare(start)
        self._mirror.remove_staged()

    def uri_of(self, number: int) -> str | None:
        store, name = self._mirror.filesystem, self._run_dir.checkpoint(number).name
        with contextlib.suppress(StorageError):  # then the ranks get it from this disk
            if store.given is None and store.exists(f"{name}/{MANIFEST_NAME}"):  # it may still be on its way there
                return f"{store.uri}/{name}"
        return None

    def abandon(self, attempt: int) -> None:
        self._mirror.remove_staged(attempt)


def _sent_manifest(rank: int, staged: StagedCheckpoint) -> Manifest:
    manifest = parse_manifest(staged.manifest or b"", f"the checkpoint of rank {rank}")
    if manifest is None:
        raise CheckpointCorruptError(f"rank {rank} has sent something other than a manifest")
    return manifest


def _pickled(filesystem: Any) -> bytes | None:
    """A filesystem that the user has given with the storage path travels to the ranks."""
    if filesystem is None:
        return None
    import cloudpickle

    return bytes(cloudpickle.dumps(filesystem))
