"""The few file operations that the rest of the storage layer is built from."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

from paceline.air.errors import StorageError

PRIVATE_DIR_MODE = 0o700
PRIVATE_FILE_MODE = 0o600

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}


def storage_error(error: OSError, path: Path | str, doing: str, *, needed: int | None = None) -> StorageError:
    """Turn what the system said about `path` into an error that says what to do."""
    code = error.errno if error.errno is not None else errno.EIO
    text = f"{doing} failed: {error.strerror or error}"
    if code in _NO_ROOM:
        text += f" ({_room(path, needed)}). Free some space, or choose another storage_path"
    elif code in _NO_PERMISSION:
        text += f" (as uid {os.geteuid()}). Make it writable for this user, or choose another storage_path"
    elif code == errno.ENAMETOOLONG:
        text += f" (the path has {len(os.fsencode(path))} bytes). Choose a shorter storage_path"
    return StorageError(code, text, str(path))


def _room(path: Path | str, needed: int | None) -> str:
    free = free_bytes(path)
    free_text = "unknown" if free is None else f"{free:,} bytes"
    needed_text = "unknown" if needed is None else f"{needed:,} bytes"
    return f"needed: {needed_text}, free: {free_text}"


def free_bytes(path: Path | str) -> int | None:
    """Bytes an ordinary user can still write on the file system that holds `path` (or its nearest parent)."""
    for place in (Path(path), *Path(path).parents):
        try:
            usage = os.statvfs(place)
        except OSError:
            continue
        return usage.f_bavail * usage.f_frsize
    return None


def make_private_dirs(path: Path, *, on_disk: bool = False) -> None:
    """Create `path` and its missing parents for this user alone, whatever the umask says.

    With `on_disk` their names survive a power cut.
    """
    missing: list[Path] = []
    place = path
    while not os.path.lexists(place):
        missing.append(place)
        place = place.parent
    for directory in reversed(missing):
        try:
            os.mkdir(directory, PRIVATE_DIR_MODE)
        except FileExistsError:  # another process was faster
            continue
        except OSError as error:
            raise storage_error(error, directory, "creating the directory") from error
        if on_disk:
            sync_names(directory.parent)
    if not path.is_dir():
        raise StorageError(errno.ENOTDIR, "this is not a directory. Choose another storage_path", str(path))


def sync_directory(path: Path | str) -> None:
    """Make the names inside a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_names(directory: Path) -> None:
    """The same for a directory that may be somebody else's: one that cannot be opened for reading is left as it is."""
    with contextlib.suppress(PermissionError):
        sync_directory(directory)


def write_durably(path: Path, content: bytes) -> None:
    """Write a small file so that it is whole and on disk, or is not there at all under this name."""
    write_whole(path, content, on_disk=True)


def write_whole(path: Path, content: bytes, *, on_disk: bool = False) -> None:
    """Write a small file so that it is whole, or is not there at all under this name."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    try:
        try:
            write_all(descriptor, content)
            if on_disk:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_all(descriptor: int, content: bytes | memoryview) -> None:
    """os.write until everything is written."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def delete_tree(path: Path) -> None:
    """Remove a directory tree, never following links. Nothing there is fine."""
    try:
        if path.is_symlink() or path.is_file():
            path.unlink()
        else:
            shutil.rmtree(path, onerror=_unless_gone)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error, error.filename or path, "deleting") from error


def _unless_gone(_function: object, _path: str, problem: tuple[type[BaseException], BaseException, object]) -> None:
    """Somebody else may be deleting the same tree: what is gone already is fine."""
    if not isinstance(problem[1], FileNotFoundError):
        raise problem[1]


def start_writeback(descriptor: int, offset: int, length: int) -> None:
    """Ask the system to begin writing this range to disk now, so that a later fsync finds little left to do.

    Only a hint: where the call does not exist or fails, fsync does all of the work and reports all errors.
    """
    call = _sync_file_range()
    if call is not None:
        call(descriptor, offset, length, _SYNC_FILE_RANGE_WRITE)


_SYNC_FILE_RANGE_WRITE = 2


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    import ctypes

    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return cast("Callable[[int, int, int, int], int] | None", call)


SYNC_SECONDS = 0.05
MOST_WAITING = 256
"""Closed files whose descriptors are still open because the disk lags behind; beyond it the caller waits."""


class SharedSync:
    """One thread that syncs what it is told about. It belongs to the process that made it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._working = threading.Lock()
        """One pass at a time: a caller that has to wait waits for the pass under way as well."""
        self._dirty: dict[int, Callable[[], None]] = {}
        self._to_close: list[int] = []
        self._unclosed = 0
        """Those to close, and those that are being closed."""
        self._names: set[Path] = set()
        self._is_due = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, key: int, sync: Callable[[], None]) -> None:
        """Have `sync` called soon, once for however many notes under the same key."""
        with self._lock:
            self._dirty[key] = sync
        self._start()

    def forget(self, key: int) -> None:
        with self._lock:
            self._dirty.pop(key, None)

    def take_over(self, descriptor: int, names: Iterable[Path] = ()) -> None:
        """Sync and close a file that nobody writes any more, and sync the directories that hold its name."""
        with self._lock:
            self._to_close.append(descriptor)
            self._names.update(names)
            self._unclosed += 1
            too_many = self._unclosed > MOST_WAITING
        if too_many:
            self._work_off()
        self._start()

    def close(self) -> None:
        """Everything is on disk when this returns."""
        if os.getpid() != self._pid:
            return
        self._closing.set()
        self._is_due.set()
        if self._thread is not None:
            self._thread.join()
        self._work_off()

    def _start(self) -> None:
        self._is_due.set()
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                thread = threading.Thread(target=self._serve, name="paceline-journal", daemon=True)
                thread.start()  # before anybody can wait for its end
                self._thread = thread

    def _serve(self) -> None:
        while not self._closing.is_set():  # looked at after each clear(), which may undo what close() has set
            self._is_due.wait()
            if self._closing.wait(SYNC_SECONDS):
                return
            self._is_due.clear()
            self._work_off()

    def _work_off(self) -> None:
        with self._working:
            with self._lock:
                dirty, self._dirty = self._dirty, {}
                to_close, self._to_close = self._to_close, []
                names, self._names = self._names, set()
            for sync in dirty.values():
                sync()
            for descriptor in to_close:
                with contextlib.suppress(OSError):  # its last content was flushed; nobody is left to be told
                    os.fdatasync(descriptor)
                with contextlib.suppress(OSError):  # a network file system may fail here; the others are closed anyway
                    os.close(descriptor)
            with self._lock:
                self._unclosed -= len(to_close)
            for directory in names:
                with contextlib.suppress(OSError):
                    sync_names(directory)
