"""Temporary directories that do not outlive a killed process for long.

A directory in use is locked by an open descriptor, which the system closes with the process. The next one to be
made removes those that nobody holds any more.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.air.process import boot_id

PREFIX = "paceline-checkpoint-"
SHORT_PREFIX = "plr-"
"""For a directory that holds sockets: the system takes paths of at most 107 bytes for those."""
_IN_USE = re.compile(rf"(?:{PREFIX}|{SHORT_PREFIX})in-use-([0-9a-f]+)-\w+")


@contextmanager
def temporary_directory(prefix: str = PREFIX, place: str | None = None) -> Iterator[Path]:
    """A private directory that is gone afterwards; in `place`, or where temporary files go."""
    place = place or tempfile.gettempdir()
    sweep(place)
    fresh = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    holder = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folder = _held(fresh, holder, prefix)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(holder)


def _held(fresh: Path, holder: int, prefix: str) -> Path:
    """The directory under a name that says: it can be removed once it is not locked. So it is locked first."""
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a file system without locks
        return fresh
    return fresh.rename(fresh.with_name(f"{prefix}in-use-{_boot()}-{fresh.name.removeprefix(prefix)}"))


def sweep(place: str | None = None) -> None:
    """Remove what killed processes of this user left behind in `place`, or where temporary files go.

    Only of this boot: another machine that shares the place may not share its locks.
    """
    place = place or tempfile.gettempdir()
    for name in os.listdir(place):
        match = _IN_USE.fullmatch(name)
        if match and match[1] == _boot():
            with suppress(OSError):  # held, or gone already
                _remove_unless_held(Path(place, name))


def _remove_unless_held(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
    finally:
        os.close(descriptor)


def _boot() -> str:
    return boot_id().replace("-", "")[:16] or "0"
