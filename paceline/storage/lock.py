"""One driver per trial directory.

The system drops the lock when its process dies, so a lock is never stale. On Linux the lock belongs to the open file
description: the driver may read or copy the lock file without losing it, as it would lose a plain POSIX lock by
closing any descriptor of the file. Such a lock is shared with forked children until they close the descriptor;
children that Python forks do so at once, programs that are executed never get it. Elsewhere a POSIX lock has to do.
A table of the locks that this process holds tells a second driver in the same process who holds the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.air.errors import RunLockedError
from paceline.air.process import boot_id, pid_namespace, start_time
from paceline.storage.files import PRIVATE_FILE_MODE, storage_error

_held: dict[str, RunLock] = {}
"""Real path of the lock file -> the lock that this process holds."""
_releasing = threading.Lock()


def describe_this_process() -> dict[str, Any]:
    """What a lock says about its holder."""
    return {
        "pid": os.getpid(),
        "start": start_time(os.getpid()),
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "pid_namespace": pid_namespace(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def is_of_this_process(holder: Mapping[str, Any]) -> bool:
    """Whether a lock names this very process."""
    return _could_be_seen_here(holder) and (holder.get("pid"), holder.get("start")) == (
        os.getpid(),
        start_time(os.getpid()),
    )


def is_provably_dead(holder: Mapping[str, Any]) -> bool:
    """Whether a lock names a process that ran here and is gone.

    Nothing is known of another boot, even under the same host name: containers and cloned machines share names.
    """
    if not _could_be_seen_here(holder) or not isinstance(holder.get("pid"), int):
        return False
    return start_time(holder["pid"]) != holder.get("start")


def _could_be_seen_here(holder: Mapping[str, Any]) -> bool:
    here = describe_this_process()
    return all(here[key] and holder.get(key) == here[key] for key in ("host", "boot_id", "pid_namespace"))


class RunLock:
    """The exclusive right to write one trial directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._real_path = ""
        self._holder: dict[str, Any] = {}

    def acquire(self) -> None:
        """Take the lock, or raise RunLockedError at once."""
        real_path = os.path.realpath(self.path)
        if real_path in _held:
            raise _refusal(self.path, _held[real_path]._holder)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE_MODE)
        except OSError as error:
            raise storage_error(error, self.path, "opening the lock file") from error
        try:
            _set_lock(descriptor, fcntl.F_WRLCK)
            holder = describe_this_process()
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        except OSError as error:
            refusal = error.errno in (errno.EACCES, errno.EAGAIN)
            failure = (
                _refusal(self.path, _read_holder(descriptor))
                if refusal
                else storage_error(error, self.path, "locking the trial directory")
            )
            os.close(descriptor)
            raise failure from error
        self._descriptor, self._real_path, self._holder = descriptor, real_path, holder
        _held[real_path] = self

    @property
    def holder(self) -> dict[str, Any]:
        """How the lock names this process while it is held."""
        return dict(self._holder)

    def release(self) -> None:
        """Give the lock back. In a forked child there is nothing to give back."""
        with _releasing:  # a thread that stopped waiting and the one that it waited for may both release
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is None:
                return
            del _held[self._real_path]
        try:
            os.ftruncate(descriptor, 0)  # the file stays: unlinking it would let two drivers lock two files of one name
            _set_lock(descriptor, fcntl.F_UNLCK)  # closing alone would leave it to a child that has the descriptor
        finally:
            os.close(descriptor)

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def is_held(path: Path) -> bool:
    """Whether a driver holds the lock at this path, here or on another machine. Nothing is taken or changed.

    A system on which locks belong to processes cannot be asked without risk to this process's own locks: there the
    answer is whether the holder that the file names is known to be gone.
    """
    if _held and os.path.realpath(path) in _held:
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error(error, path, "looking at the lock file") from error
    try:
        if hasattr(fcntl, "F_OFD_GETLK"):
            asked = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
            return bool(struct.unpack_from("h", asked)[0] != fcntl.F_UNLCK)
        holder = _read_holder(descriptor)
        return bool(holder) and not is_provably_dead(holder)
    except OSError as error:
        raise storage_error(error, path, "asking who holds the lock") from error
    finally:
        os.close(descriptor)


def holder_of(path: Path) -> dict[str, Any]:
    """What the holder of a lock has written about itself; nothing if nobody holds it, or does so only just now."""
    held = _held.get(os.path.realpath(path)) if _held else None
    if held is not None:
        return held.holder
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return {}
    try:
        return _read_holder(descriptor)
    finally:
        os.close(descriptor)


def _whole_file(kind: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)  # struct flock


def _set_lock(descriptor: int, kind: int) -> None:
    """Take or give back the lock, without waiting."""
    if hasattr(fcntl, "F_OFD_SETLK"):
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _whole_file(kind))
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB)


def _leave_to_parent() -> None:
    """In a forked child: close the descriptors, so that the locks end with the parent."""
    for lock in _held.values():
        if lock._descriptor is not None:
            os.close(lock._descriptor)
            lock._descriptor = None
    _held.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def _read_holder(descriptor: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):  # the holder is between locking and writing its name
        return {}
    return holder if isinstance(holder, dict) else {}


def _refusal(path: Path, holder: dict[str, Any]) -> RunLockedError:
    what = "experiment" if path.name.startswith("experiment-") else "trial"
    return RunLockedError(
        errno.EWOULDBLOCK,
        f"another driver is writing this {what} directory: pid {holder.get('pid', 'unknown')} "
        f"on host {holder.get('host', 'unknown')}, since {holder.get('since', 'just now')}. "
        "Wait for it to end or stop it; the lock is free as soon as that process is gone",
        str(path.parent),
    )
