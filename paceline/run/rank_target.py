"""Where one rank puts its checkpoints, and where it finds committed ones: the worker's half of a CheckpointTarget.

The rank captures a checkpoint (afterwards the user may change what it was made of), and delivers it: the driver can
get at every file then, and only has to commit it. checkpoint_target.py is the driver's half.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.attachment import Attachment
from paceline.air.background_pool import in_parallel
from paceline.air.errors import CheckpointError, CheckpointNotFoundError
from paceline.air.manifest import Manifest, path_of
from paceline.air.temporary import temporary_directory
from paceline.run.messages import (
    CheckpointFile,
    CheckpointFiles,
    CheckpointPiece,
    CheckpointWanted,
    InMemorySetup,
    RelayedSetup,
    RemotePrefixSetup,
    SessionSetup,
    StagedCheckpoint,
    encode,
)
from paceline.storage.files import PRIVATE_DIR_MODE, delete_tree
from paceline.storage.run_dir import MANIFEST_NAME, RunDir
from paceline.storage.stager import Stager

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.engine.base import WorkerChannel

PIECE_BYTES = 4 << 20
"""What one message carries of a file."""
_PARALLEL_UPLOADS = 4

Ask = Callable[[CheckpointWanted], tuple[CheckpointFiles, tuple[Attachment, ...]]]
"""Sends a question to the driver and waits for the answer."""


class Capture(ABC):
    """A checkpoint as it was when it was reported."""

    @abstractmethod
    def deliver(self, number: int, facts: dict[str, Any]) -> tuple[StagedCheckpoint, tuple[Attachment, ...]]:
        """Get everything to where the driver can commit it, with the facts for the manifest."""


class RankTarget(ABC):
    """The place that one rank's checkpoints go to."""

    saves_in_background = True
    """Delivering takes long enough for `async_save` to make sense."""
    holds_files = True
    """What several ranks deliver can be put together."""

    @abstractmethod
    def capture(self, checkpoint: Checkpoint, number: int, report: Mapping[str, Any], *, move: bool = False) -> Capture:
        """Copy the checkpoint; with `move` its directory is taken over instead."""

    @abstractmethod
    def take_over(self, source: Path, number: int) -> Path | None:
        """Give a directory of the user's a name of ours, by one rename; None if that cannot be done."""

    @abstractmethod
    def find(self, number: int | None, kind: type[Checkpoint]) -> Checkpoint | None:
        """The committed checkpoint of this number, or a newer one; None if there is none (yet)."""

    @abstractmethod
    def kept(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """All that are committed and kept, oldest first, with the rows they were reported with."""

    def hold(self, attachment: Attachment) -> None:  # noqa: B027  (only what is in memory is held)
        """The newest committed checkpoint, where it is in memory only."""

    def close(self) -> None:  # noqa: B027  (nothing to give back)
        """Give back what the rank has taken for it."""


def rank_target(setup: SessionSetup, channel: WorkerChannel, ask: Ask) -> RankTarget:
    """The target that the driver has chosen."""
    chosen = setup.target
    if isinstance(chosen, InMemorySetup):
        return _InMemory()
    if isinstance(chosen, RemotePrefixSetup):
        return _RemotePrefix(chosen, setup.attempt, ask)
    if isinstance(chosen, RelayedSetup):
        return _Relayed(setup.attempt, channel, ask)
    return _SharedPath(RunDir(Path(os.fsdecode(setup.trial_dir))), setup.attempt)


# -- in memory ----------------------------------------------------------------------------


class _InMemory(RankTarget):
    """The packed content is an attachment of the report; the driver holds it."""

    saves_in_background = False
    holds_files = False

    def __init__(self) -> None:
        self._held: Checkpoint | None = None

    def capture(self, checkpoint: Checkpoint, number: int, report: Mapping[str, Any], *, move: bool = False) -> Capture:
        return _InMemoryCapture(packed_in_memory(checkpoint, report))

    def take_over(self, source: Path, number: int) -> Path | None:
        return None

    def find(self, number: int | None, kind: type[Checkpoint]) -> Checkpoint | None:
        return self._held

    def kept(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        return []

    def hold(self, attachment: Attachment) -> None:
        from paceline.air.checkpoint import Checkpoint

        self._held = Checkpoint.from_attachment(attachment)


class _InMemoryCapture(Capture):
    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    def deliver(self, number: int, facts: dict[str, Any]) -> tuple[StagedCheckpoint, tuple[Attachment, ...]]:
        staged = StagedCheckpoint(b"", number, self._attachment.size, facts["score"])
        return staged, (self._attachment,)


def packed_in_memory(checkpoint: Checkpoint, report: Mapping[str, Any] | None = None) -> Attachment:
    """The checkpoint in a file that has no name: it is gone with the last process that holds it."""
    return Attachment.written("paceline-checkpoint", lambda file: checkpoint.write_packed(file, report=report))


# -- files --------------------------------------------------------------------------------


class _Files(RankTarget):
    """Whatever is written into a directory first."""

    is_final = True
    """The directory is on the run's own disk: what is written there must survive a power cut."""

    def capture(self, checkpoint: Checkpoint, number: int, report: Mapping[str, Any], *, move: bool = False) -> Capture:
        stager = Stager(self._new_directory(number), durable=self.is_final)
        try:
            checkpoint.write_files(stager, report=report, move=move)
        except BaseException:
            stager.abort()
            raise
        return _FilesCapture(self, stager)

    def take_over(self, source: Path, number: int) -> Path | None:
        path = self._new_directory(number)
        try:
            os.rename(source, path)
        except OSError:  # another file system
            return None
        return path

    @abstractmethod
    def _new_directory(self, number: int) -> Path:
        """A path that does not exist yet, to write a checkpoint to."""

    @abstractmethod
    def deliver(self, directory: Path, manifest: Manifest) -> tuple[bytes, bytes | None]:
        """Get the files to the driver. Returns where they are, and the manifest if it is not there with them."""


class _FilesCapture(Capture):
    def __init__(self, target: _Files, stager: Stager) -> None:
        self._target = target
        self._stager = stager

    def deliver(self, number: int, facts: dict[str, Any]) -> tuple[StagedCheckpoint, tuple[Attachment, ...]]:
        with self._stager:
            manifest = self._stager.finish(facts)
        path, encoded = self._target.deliver(self._stager.directory, manifest)
        return StagedCheckpoint(path, number, manifest.size, facts["score"], encoded), ()


class _SharedPath(_Files):
    """Straight into the run's directory, under a temporary name: the driver only has to rename it."""

    def __init__(self, run_dir: RunDir, attempt: int) -> None:
        self._run_dir = run_dir
        self._attempt = attempt

    def _new_directory(self, number: int) -> Path:
        return self._run_dir.staging(number, self._attempt)

    def deliver(self, directory: Path, manifest: Manifest) -> tuple[bytes, bytes | None]:
        return os.fsencode(directory), None

    def find(self, number: int | None, kind: type[Checkpoint]) -> Checkpoint | None:
        if number is None:
            return None
        path = self._run_dir.checkpoint(number)
        if not path.exists():
            present = self._run_dir.checkpoints()
            if not present:  # this rank reported one, rank 0 did not: there is none
                return None
            _, path = present[-1]
        return kind.from_directory(str(path))

    def kept(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        from paceline.run.history import load_result

        # The journal knows: the driver has written it before it answered.
        return sorted(load_result(self._run_dir.root).best_checkpoints, key=lambda kept: kept[0].number or 0)


class _Away(_Files):
    """By way of a temporary directory, for ranks that do not see the run's own."""

    is_final = False

    def __init__(self, attempt: int, ask: Ask) -> None:
        self._attempt = attempt
        self._ask = ask
        self._resources = contextlib.ExitStack()
        self._scratch: Path | None = None

    def _place(self) -> Path:
        if self._scratch is None:
            self._scratch = self._resources.enter_context(temporary_directory())
        return self._scratch

    def _new_directory(self, number: int) -> Path:
        return RunDir(self._place()).staging(number, self._attempt)

    def deliver(self, directory: Path, manifest: Manifest) -> tuple[bytes, bytes | None]:
        try:
            self._send(directory, manifest)
        finally:
            delete_tree(directory)
        return directory.name.encode(), manifest.encode()

    @abstractmethod
    def _send(self, directory: Path, manifest: Manifest) -> None: ...

    @abstractmethod
    def _locate(self, number: int, kind: type[Checkpoint]) -> Checkpoint | None:
        """The committed checkpoint of exactly this number; None if it is gone."""

    def kept(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        from paceline.air.checkpoint import Checkpoint

        answer, _ = self._ask(CheckpointWanted(None, all_kept=True))
        found = [(self._locate(number, Checkpoint), row) for number, row in answer.kept]
        return [(checkpoint, row) for checkpoint, row in found if checkpoint is not None]

    def close(self) -> None:
        self._resources.close()


class _RemotePrefix(_Away):
    """Into the run's storage, beside the checkpoints: the driver copies it there and writes the manifest."""

    def __init__(self, chosen: RemotePrefixSetup, attempt: int, ask: Ask) -> None:
        import pickle

        from paceline.storage.filesystem import FsspecFilesystem
        from paceline.storage.mirror import numbers_in, staging_prefix

        super().__init__(attempt, ask)
        self._uri = chosen.uri
        given = None if chosen.filesystem is None else pickle.loads(chosen.filesystem)  # by the user, to the driver
        self._filesystem = FsspecFilesystem(chosen.uri, given)
        self._prefix = staging_prefix(attempt)
        self._numbers_in = numbers_in

    def _send(self, directory: Path, manifest: Manifest) -> None:
        upload, place = self._filesystem.upload, f"{self._prefix}/{directory.name}"
        uploads = [partial(upload, directory / path_of(name), f"{place}/{name}") for name in manifest.files]
        in_parallel(uploads, "paceline-transfer", _PARALLEL_UPLOADS)

    def find(self, number: int | None, kind: type[Checkpoint]) -> Checkpoint | None:
        if number is None:
            return None
        if (found := self._locate(number, kind)) is not None:
            return found
        numbers = self._numbers_in(self._filesystem.list())
        return self._reference(numbers[-1], kind) if numbers else None

    def _locate(self, number: int, kind: type[Checkpoint]) -> Checkpoint | None:
        is_there = self._filesystem.exists(f"{RunDir(Path()).checkpoint(number).name}/{MANIFEST_NAME}")
        return self._reference(number, kind) if is_there else None

    def _reference(self, number: int, kind: type[Checkpoint]) -> Checkpoint:
        uri = f"{self._uri}/{RunDir(Path()).checkpoint(number).name}"
        return kind.from_uri(uri) if self._filesystem.given is None else kind(uri, self._filesystem.given)


class _Relayed(_Away):
    """Through the channel, in pieces: the driver writes the files to its own disk."""

    def __init__(self, attempt: int, channel: WorkerChannel, ask: Ask) -> None:
        super().__init__(attempt, ask)
        self._channel = channel
        self._found: dict[int, Path] = {}
        """By number, what `find` has fetched; the last one may still be in use."""
        self._kept: dict[int, Path] = {}
        """The same of `kept`: in use as long as the run keeps them."""

    def _send(self, directory: Path, manifest: Manifest) -> None:
        send, staging = self._channel.send, directory.name
        for name in manifest.empty_directories:
            send(encode(CheckpointPiece(staging, os.fsencode(path_of(name)), is_directory=True)))
        for name, entry in manifest.files.items():
            path = os.fsencode(path_of(name))
            with open(directory / path_of(name), "rb") as file:
                while content := file.read(PIECE_BYTES):
                    is_last = file.tell() >= entry.size
                    send(encode(CheckpointPiece(staging, path, entry.mode, is_last)), [Attachment(content)])
            if not entry.size:
                send(encode(CheckpointPiece(staging, path, entry.mode, is_last=True)))

    def find(self, number: int | None, kind: type[Checkpoint]) -> Checkpoint | None:
        for old in list(self._found)[:-1]:
            delete_tree(self._found.pop(old))
        if number is None:
            return None
        if number not in self._found:
            listed, _ = self._ask(CheckpointWanted(number))
            if listed.number is None:
                return None
            number = listed.number  # the newest one may have taken its place
            if number not in self._found:
                self._found[number] = self._fetch(listed)
        return kind.from_directory(str(self._found[number]))

    def kept(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        kept = super().kept()
        paths = {checkpoint.path for checkpoint, _ in kept}
        for number in [number for number, folder in self._kept.items() if str(folder) not in paths]:
            delete_tree(self._kept.pop(number))
        return kept

    def _locate(self, number: int, kind: type[Checkpoint]) -> Checkpoint | None:
        if number not in self._kept:
            listed, _ = self._ask(CheckpointWanted(number))
            if listed.number != number:
                return None
            try:
                self._kept[number] = self._fetch(listed)
            except CheckpointNotFoundError:
                return None
        return kind.from_directory(str(self._kept[number]))

    def _fetch(self, listed: CheckpointFiles) -> Path:
        folder = self._place() / f"fetched-{secrets.token_hex(4)}"
        fetch(self._ask, listed, folder)
        return folder


def fetch_start(ask: Ask, into: Path) -> None:
    """Get the checkpoint that the run starts from, which is on the driver's disk."""
    listed, _ = ask(CheckpointWanted(None))
    if listed.problem:
        raise CheckpointError(f"the checkpoint to continue from cannot be read: {listed.problem}")
    fetch(ask, listed, into)


def fetch(ask: Ask, listed: CheckpointFiles, into: Path) -> None:
    """Get the files that the driver has listed, in pieces."""
    into.mkdir(PRIVATE_DIR_MODE, parents=True)
    try:
        for file in listed.files:
            _fetch_file(ask, listed.number, file, into / os.fsdecode(file.name))
    except BaseException:
        delete_tree(into)
        raise


def _fetch_file(ask: Ask, number: int | None, file: CheckpointFile, path: Path) -> None:
    path.parent.mkdir(PRIVATE_DIR_MODE, parents=True, exist_ok=True)
    if file.is_directory:
        path.mkdir(PRIVATE_DIR_MODE, exist_ok=True)
        return
    with open(path, "wb") as target:
        while (offset := target.tell()) < file.size:
            _, attachments = ask(CheckpointWanted(number, file.name, offset, PIECE_BYTES))
            if not attachments:
                raise CheckpointNotFoundError(f"{path.name} changed, or was deleted, while it was being read")
            attachments[0].write_to(target)
    path.chmod(file.mode)
