"""One driver per trial directory.

The lock is a POSIX record lock: the system drops it when its process dies, so a lock is
never stale, and forked workers do not inherit it. Such a lock does not exclude its own
process, and closing *any* descriptor of the file would drop it; hence a table of the
locks that this process holds, which is consulted before the file is opened.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.air.errors import RunLockedError
from paceline.storage.files import PRIVATE_FILE_MODE, storage_error

_held: dict[tuple[int, str], dict[str, Any]] = {}
"""(pid, real path) -> holder. The pid keeps a forked child from believing that it holds its parent's locks."""


def boot_id() -> str:
    """Changes with every boot of this machine: a pid of another boot means nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def describe_this_process() -> dict[str, Any]:
    """What a lock says about its holder."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


class RunLock:
    """The exclusive right to write one trial directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def _key(self) -> tuple[int, str]:
        return os.getpid(), os.path.realpath(self.path)

    def acquire(self) -> None:
        """Take the lock, or raise RunLockedError at once."""
        key = self._key
        if key in _held:
            raise _refusal(self.path, _held[key])
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE_MODE)
        except OSError as error:
            raise storage_error(error, self.path, "opening the lock file") from error
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        self._descriptor = descriptor
        _held[key] = holder

    def release(self) -> None:
        """Give the lock back. In a forked child this only closes the inherited descriptor."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        if _held.pop(self._key, None) is not None:
            os.ftruncate(descriptor, 0)  # the file stays: unlinking it would let two drivers lock two files of one name
        os.close(descriptor)

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _read_holder(descriptor: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):  # the holder is between locking and writing its name
        return {}
    return holder if isinstance(holder, dict) else {}


def _refusal(path: Path, holder: dict[str, Any]) -> RunLockedError:
    return RunLockedError(
        errno.EWOULDBLOCK,
        f"another driver is writing this trial directory: pid {holder.get('pid', 'unknown')} "
        f"on host {holder.get('host', 'unknown')}, since {holder.get('since', 'just now')}. "
        "Wait for it to end or stop it; the lock is free as soon as that process is gone",
        str(path.parent),
    )
