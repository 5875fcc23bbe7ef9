"""Requests to a live driver, as files: whoever may write to the run's directory may ask. Nothing listens.

A request is a file in a folder that exists only while somebody asks. The driver looks once a second whether there is
such a folder, takes the request and answers with another file. Only files of the driver's own user count; links, large
files and requests to another driver of the same run are ignored. requests.py is the side that asks.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from paceline.storage.files import PRIVATE_FILE_MODE, write_all

LOOK_EVERY_S = 1.0
MOST_BYTES = 4096
"""Of a request."""
_MOST_FILES = 100
"""Requests that are looked at, so that nobody can keep the driver busy with files."""
_NAME = re.compile(r"([0-9a-f]{32})\.request")

Kind = Literal["stop", "stacks"]


class Request(msgspec.Struct, kw_only=True):
    """What is asked of a driver."""

    what: Kind
    driver: dict[str, Any]
    """The driver that is meant, as the lock names it: a later one must not act on it."""
    pid: int
    host: str = ""

    @property
    def sender(self) -> str:
        host = re.sub(r"[^\w.-]", "?", self.host)[:64]
        return f"process {self.pid}" + (f" on {host}" if host != os.uname().nodename else "")


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the driver says to it."""

    refused: str = ""
    """Why it does not do it."""
    stacks: dict[str, str] = {}
    """By rank."""


class Glances:
    """When a driver looks for requests: about once a second."""

    def __init__(self) -> None:
        self._look_at = 0.0

    def is_due(self) -> bool:
        """Whether to look now; if so, the next time is a second later."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY_S
        return True


class Inbox:
    """The driver's side: requests about one run, or one search."""

    def __init__(self, folder: Path, driver: Mapping[str, Any]) -> None:
        self._folder = str(folder)
        self._driver = dict(driver)

    def take(self) -> Iterator[tuple[Request, str]]:
        """The requests that are there, each with the name to answer it by. `Glances` says when it is worth a look."""
        try:
            os.lstat(self._folder)  # as good as always it is not there
        except OSError:
            return
        with contextlib.suppress(OSError), opened(self._folder) as folder:
            found = filter(None, map(_NAME.fullmatch, sorted(os.listdir(folder))))
            for match in islice(found, _MOST_FILES):
                if request := self._read(folder, match[0]):
                    # Until it is answered something stays: whoever finds the folder empty removes it.
                    os.rename(match[0], f"{match[1]}.taken", src_dir_fd=folder, dst_dir_fd=folder)
                    yield request, match[1]

    def _read(self, folder: int, name: str) -> Request | None:
        try:
            request = msgspec.json.decode(read_own_file(name, folder, MOST_BYTES), type=Request)
        except (OSError, msgspec.DecodeError):
            return None
        return request if request.driver == self._driver else None

    def answer(self, name: str, answer: Answer) -> None:
        """Whoever asked finds it; if it cannot be written, they give up by themselves."""
        with contextlib.suppress(OSError), opened(self._folder) as folder:
            put(f"{name}.answer", folder, msgspec.json.encode(answer))
            os.unlink(f"{name}.taken", dir_fd=folder)

    def clear(self) -> None:
        """Remove what was asked of an earlier driver, which may have been killed. Call it with the lock held."""
        with contextlib.suppress(OSError):
            with opened(self._folder) as folder:
                for name in os.listdir(folder):
                    if not (_NAME.fullmatch(name) and self._read(folder, name)):
                        os.unlink(name, dir_fd=folder)
            os.rmdir(self._folder)


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """A directory of this user's own; everything in it is reached through the descriptor."""
    folder = open_folder(path)
    try:
        yield folder
    finally:
        os.close(folder)


def open_folder(path: str) -> int:
    """The descriptor of a directory of this user's own. Raises OSError for anything else."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.fstat(folder).st_uid != os.geteuid():
        os.close(folder)
        raise PermissionError(1, "the directory belongs to another user", path)
    return folder


def read_own_file(name: str, folder: int, most: int) -> bytes:
    """The content of a small file of this user's own. Raises OSError for anything else."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size > most:
            raise PermissionError(1, "this is not a small file of this user", name)
        return os.pread(file, most, 0)
    finally:
        os.close(file)


def put(name: str, folder: int, content: bytes) -> None:
    """A new file that appears whole."""
    temporary = f".{name}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, PRIVATE_FILE_MODE, dir_fd=folder)
    try:
        write_all(file, content)
    finally:
        os.close(file)
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
