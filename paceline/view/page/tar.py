"""A checkpoint as a tar file, made while it is sent."""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import CheckpointCorruptError

_PIECE = 1 << 20
_BLOCK = 512


class TarStream:
    """The tar file of a checkpoint, which was compared with its manifest before.

    Only regular files below its directory are sent, and no link is followed on the way to them.
    """

    def __init__(self, path: str, filesystem: Any = None, *, folder: str) -> None:
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        try:
            root = Path(self._stack.enter_context(Checkpoint(path, filesystem).as_directory()))
            self._files = [(name, _size(root, name)) for name in sorted(_names(root))]
        except BaseException:
            self._stack.close()
            raise
        self._pieces = _pieces(root, self._files, folder)
        self.length = sum(len(_header(f"{folder}/{name}", size)) + _padded(size) for name, size in self._files) + 1024

    def read(self) -> bytes:
        """The next piece; empty at the end."""
        with self._lock:
            return next(self._pieces, b"")

    def close(self) -> None:
        with self._lock:
            self._pieces.close()
            self._stack.close()


def _names(root: Path) -> Iterator[str]:
    for directory, folders, files in os.walk(root, followlinks=False):
        folders[:] = [name for name in folders if not os.path.islink(os.path.join(directory, name))]
        for name in files:
            yield os.path.relpath(os.path.join(directory, name), root)


def _size(root: Path, name: str) -> int:
    with _open_below(root, name) as file:
        return os.fstat(file.fileno()).st_size


def _pieces(root: Path, files: list[tuple[str, int]], folder: str) -> Generator[bytes, None, None]:
    for name, size in files:
        yield _header(f"{folder}/{name}", size)
        left = size
        with _open_below(root, name) as file:
            while left:
                piece = file.read(min(_PIECE, left))
                if not piece:
                    raise CheckpointCorruptError(f"{root}: {name!r} became shorter while it was sent")
                left -= len(piece)
                yield piece
        yield bytes(_padded(size) - size)
    yield bytes(2 * _BLOCK)


def _open_below(root: Path, name: str) -> BinaryIO:
    """A regular file below a directory; no part of the way may be a link."""
    *folders, last = name.split("/")
    place = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            os.close(place)
            place = below
        descriptor = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    except OSError as error:
        raise CheckpointCorruptError(f"{root}: {name!r} cannot be read: {error.strerror}") from error
    finally:
        os.close(place)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointCorruptError(f"{root}: {name!r} is not a regular file")
    return open(descriptor, "rb")


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape")


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
