"""Where the workers of an agent have their directories, if they do not share the driver's files.

A directory that its agent holds locked. What agents that were killed have left is removed by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading

_MOST_TRIES = 100


class AgentFolder:
    """Gone with its agent, or at the latest when another agent begins."""

    def __init__(self) -> None:
        self._path, self._fd = _make_locked()
        # There may be many gigabytes of it, and whoever needs a folder must not wait for that.
        threading.Thread(target=_remove_left, daemon=True).start()

    def new_folder(self) -> str:
        return tempfile.mkdtemp(prefix="worker-", dir=self._path)

    def close(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._fd)


def _prefix() -> str:
    return f"paceline-agent-{os.geteuid()}-"


def _make_locked() -> tuple[str, int]:
    for _ in range(_MOST_TRIES):
        path = tempfile.mkdtemp(prefix=_prefix())
        fd = _locked(path)
        if fd is not None:
            return path, fd
    raise OSError(f"directories in {tempfile.gettempdir()} keep being removed")


def _locked(path: str) -> int | None:
    """The directory, locked and open; None if somebody else has it, or it is gone, or not this user's."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(fd)
        if found.st_nlink and found.st_uid == os.geteuid():
            return fd
    os.close(fd)
    return None


def _remove_left() -> None:
    folder = tempfile.gettempdir()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith(_prefix()) and (fd := _locked(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(fd)
