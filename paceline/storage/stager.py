"""Writing a checkpoint where nobody takes it for one yet.

A Stager fills a staging directory. It hashes what it writes while writing, lets a few threads
sync finished files while the next one is being written, and ends with the manifest. What comes
out is complete and durable; only the rename is left, which commit.py does.
"""

from __future__ import annotations

import io
import os
import threading
from functools import partial
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from paceline.air.background_pool import BackgroundPool
from paceline.air.errors import CheckpointError, StorageError
from paceline.air.faults import fault_point, watched_point
from paceline.air.manifest import FileEntry, Manifest, is_inside, is_manifest, manifest_name, new_hash
from paceline.storage.files import (
    PRIVATE_DIR_MODE,
    PRIVATE_FILE_MODE,
    delete_tree,
    start_writeback,
    storage_error,
    sync_directory,
    write_all,
    write_durably,
)
from paceline.storage.run_dir import MANIFEST_NAME
from paceline.storage.tree import SourceFile, TreePlan, plan_tree

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_CHUNK = 256 << 10
_WRITEBACK_STEP = 8 << 20
_SYNC_THREADS = 4
_UNSYNCED_FILES = 64
"""Files that may wait for their sync with an open descriptor."""


class Stager:
    """Fills one staging directory; a context manager that removes it unless `finish()` was reached.

    A name that is staged twice keeps the later content.
    """

    def __init__(self, staging_dir: Path, *, durable: bool = True) -> None:
        self.directory = staging_dir
        self._durable = durable
        """It is to survive a power cut; otherwise it is on its way to somewhere else, and needs no manifest here."""
        self._files: dict[str, FileEntry] = {}
        self._directories: set[str] = set()
        self._empty_directories: set[str] = set()
        self._open_files: set[_HashingFile] = set()
        self._known_size = 0
        self._closed = False
        self._syncs = BackgroundPool("paceline-sync", _SYNC_THREADS)
        self._unsynced = threading.BoundedSemaphore(_UNSYNCED_FILES)
        self._sync_error: OSError | None = None
        self._fault_at_write = watched_point("stage_write")
        fault_point("before_stage_create")
        try:
            # Not its parents: if the run's directory is gone (deleted, unmounted), a new empty one must not replace it.
            os.mkdir(staging_dir, PRIVATE_DIR_MODE)
        except OSError as error:
            raise storage_error(error, staging_dir, "creating the staging directory") from error
        fault_point("after_stage_create")

    def open(self, name: str, mode: int = PRIVATE_FILE_MODE) -> BinaryIO:
        """A new file of the checkpoint, to be written from start to end and closed."""
        return io.BufferedWriter(self._create(_checked_name(name), mode), buffer_size=_CHUNK)

    def add_empty_directory(self, name: str) -> None:
        parents = [str(parent) for parent in PurePosixPath(_checked_name(name)).parents][:-1]
        for directory in (*reversed(parents), name):
            self._make_directory(directory)
        self._empty_directories.add(name)

    def add_directory(self, path: str | Path, move: bool = False, expected: Manifest | None = None) -> None:
        """Copy a tree in, or with `move` take its files over by rename where the file system allows it.

        A file that is not as `expected` raises CheckpointCorruptError.
        """
        source = Path(path)
        plan = plan_tree(source)
        self._leave_out_manifest(source, plan)
        if self.directory.resolve().is_relative_to(source.resolve()):
            raise CheckpointError(
                f"the checkpoint directory {source} contains the run's own files. Report a directory of its own"
            )
        self._known_size += plan.size
        for name, mode in plan.directories:
            self._make_directory(name, mode)
        self._empty_directories.update(plan.empty_directories)
        by_rename = move and not plan.has_links and self._same_file_system(source)
        for file in plan.files:
            if by_rename:
                self._take_over(file)
            else:
                self._copy(file)
            if expected is not None:
                staged = self._files[file.name]
                expected.check(str(path), manifest_name(file.name), staged.size, staged.hash)
        if move:
            delete_tree(source)

    def finish(self, extra: dict[str, Any]) -> Manifest:
        """Wait until every file is on disk, then write the manifest with the run's facts."""
        if self._open_files:
            names = ", ".join(sorted(file.file_name for file in self._open_files))
            raise CheckpointError(f"the checkpoint's files are still open for writing: {names}. Close them first")
        self._wait_for_syncs()
        fault_point("after_stage_fsync")
        manifest = Manifest(
            files={manifest_name(name): entry for name, entry in sorted(self._files.items())},
            empty_directories=tuple(sorted(manifest_name(name) for name in self._empty_directories)),
            facts=extra,
        )
        if not self._durable:
            self._closed = True
            return manifest
        try:
            content = manifest.encode()
            write_durably(self.directory / MANIFEST_NAME, content)
            for name in self._directories:
                sync_directory(self.directory / name)
            sync_directory(self.directory)
        except OSError as error:
            raise self._failed(error, self.directory / MANIFEST_NAME) from error
        fault_point("after_stage_manifest")
        self._closed = True
        return manifest

    def abort(self) -> None:
        """Remove everything that was written. Harmless after finish() and when called twice."""
        if self._closed:
            return
        self._closed = True
        for file in list(self._open_files):
            file.discard()
        self._syncs.close()
        delete_tree(self.directory)

    def __enter__(self) -> Stager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _leave_out_manifest(self, source: Path, plan: TreePlan) -> None:
        """A committed checkpoint may be reported again: its old manifest does not belong to the new one."""
        for file in plan.files:
            if file.name == MANIFEST_NAME:
                if not is_manifest(Path(file.path)):
                    raise CheckpointError(f"{source / MANIFEST_NAME}: this file name is reserved. Rename the file")
                plan.files.remove(file)
                return

    def _same_file_system(self, source: Path) -> bool:
        return source.stat().st_dev == self.directory.stat().st_dev

    def _make_directory(self, name: str, mode: int = PRIVATE_DIR_MODE) -> None:
        if name in self._directories:
            return
        path = self.directory / name
        try:
            os.mkdir(path)
            os.chmod(path, mode | PRIVATE_DIR_MODE)  # a directory its owner cannot enter could never be deleted
        except OSError as error:
            raise self._failed(error, path) from error
        self._directories.add(name)

    def _create(self, name: str, mode: int) -> _HashingFile:
        parents = [str(parent) for parent in PurePosixPath(name).parents][:-1]
        for parent in reversed(parents):
            self._make_directory(parent)
        path = self.directory / name
        try:
            if name in self._files:
                del self._files[name]
                os.unlink(path)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE_MODE)
            file = _HashingFile(self, name, descriptor, mode)
            self._open_files.add(file)  # from here on abort() closes it
            if mode != PRIVATE_FILE_MODE:
                os.fchmod(descriptor, mode)
        except OSError as error:
            raise self._failed(error, path) from error
        return file

    def _copy(self, file: SourceFile) -> None:
        with _open_source(file) as source, self._create(file.name, file.mode) as target:
            buffer = bytearray(min(_CHUNK, file.size + 1))
            view = memoryview(buffer)
            while count := _read_source(file, source, buffer):
                target.write(view[:count])

    def _take_over(self, file: SourceFile) -> None:
        path = self.directory / file.name
        try:
            os.rename(file.path, path)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if self._fault_at_write is not None:
                    self._fault_at_write(size=file.size)
                start_writeback(descriptor, 0, 0)
                hasher, size = new_hash(), 0
                buffer = bytearray(min(_CHUNK, file.size + 1))
                view = memoryview(buffer)
                while count := os.readv(descriptor, [buffer]):
                    hasher.update(view[:count])
                    size += count
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise self._failed(error, path) from error
        self._file_written(file.name, descriptor, FileEntry(size, hasher.hexdigest(), file.mode))

    def _file_written(self, name: str, descriptor: int, entry: FileEntry) -> None:
        """Note a complete file and have it synced in the background; the sync closes the descriptor."""
        self._files[name] = entry
        if not self._durable:
            os.close(descriptor)
            return
        owned = [descriptor]
        try:
            self._unsynced.acquire()
            self._syncs.submit(partial(self._sync_and_close, owned))
        except BaseException:  # no thread could be started; one that runs may have taken the descriptor
            while owned:
                os.close(owned.pop())
            raise
        fault_point("after_stage_file")

    def _sync_and_close(self, owned: list[int]) -> None:
        try:
            descriptor = owned.pop()
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._sync_error = self._sync_error or error
        finally:
            self._unsynced.release()

    def _wait_for_syncs(self) -> None:
        """A file whose sync failed is lost: the system may call a second sync a success without writing anything."""
        self._syncs.close()
        if self._sync_error is not None:
            raise self._failed(self._sync_error, self.directory) from self._sync_error

    def _failed(self, error: OSError, path: Path) -> StorageError:
        """The error to raise; what was staged is removed, after the free space has been read."""
        written = sum(entry.size for entry in self._files.values()) + sum(file.size for file in self._open_files)
        failure = storage_error(error, path, "storing the checkpoint", needed=max(written, self._known_size))
        self.abort()
        return failure


class _HashingFile(io.RawIOBase):
    """A file that is hashed while it is written, and on its way to disk before it is closed."""

    def __init__(self, stager: Stager, name: str, descriptor: int, mode: int) -> None:
        self.file_name = name
        self.size = 0
        self._stager = stager
        self._descriptor = descriptor
        self._mode = mode
        self._hash = new_hash()
        self._handed_to_disk = 0

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        view = memoryview(data).cast("B")
        if self._descriptor < 0:
            raise ValueError(f"checkpoint file {self.file_name} was given up")
        for begin in range(0, len(view), _CHUNK):  # hashed, and written while the processor still has it in its cache
            self._write(view[begin : begin + _CHUNK])
        return len(view)

    def _write(self, view: memoryview) -> None:
        self._hash.update(view)
        self.size += len(view)
        try:
            if self._stager._fault_at_write is not None:
                self._stager._fault_at_write(size=len(view))
            write_all(self._descriptor, view)
        except OSError as error:
            raise self._stager._failed(error, self._stager.directory / self.file_name) from error
        if self.size - self._handed_to_disk >= _WRITEBACK_STEP:
            start_writeback(self._descriptor, self._handed_to_disk, self.size - self._handed_to_disk)
            self._handed_to_disk = self.size

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._stager._open_files.discard(self)
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            entry = FileEntry(self.size, self._hash.hexdigest(), self._mode)
            self._stager._file_written(self.file_name, descriptor, entry)

    def discard(self) -> None:
        """Close without keeping the content."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self.close()


def _checked_name(name: str) -> str:
    if not is_inside(name):
        raise CheckpointError(f"{name!r} cannot be a file of a checkpoint: use a relative path without '..'")
    if name == MANIFEST_NAME:
        raise CheckpointError(f"the file name {MANIFEST_NAME} is reserved. Use another name")
    return name


def _open_source(file: SourceFile) -> io.FileIO:
    try:
        return io.FileIO(os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb")
    except OSError as error:
        raise CheckpointError(f"cannot read {file.path} in the checkpoint: {error.strerror}") from error


def _read_source(file: SourceFile, source: io.FileIO, buffer: bytearray) -> int:
    try:
        return source.readinto(buffer) or 0
    except OSError as error:
        raise CheckpointError(f"cannot read {file.path} in the checkpoint: {error.strerror}") from error
