"""Columns of long runs, kept on disk so that the next look at a run does not read its journal again.

A journal only grows, so columns of its beginning stay right. They are used again if the file still has the same
beginning, and the same bytes before the place up to which it was read. The cache lies in the user's own cache
directory, never in the run; its files can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_BYTES = 1 << 30
"""Of all files together; the ones that were not used for longest go first."""
_VERSION = 2
_SUFFIX = ".columns"
_SAMPLE = 4096


class Stored(msgspec.Struct, kw_only=True):
    """What stands before the columns in a file."""

    version: int = _VERSION
    journal: str
    offset: int
    """Up to here the journal was read."""
    rows: int
    axes: list[str]
    metrics: list[str]
    left_out: list[str]
    elapsed_before: float
    attempts: list[tuple[int, int]]
    """The number of each, and the report that it began after."""
    mark: str = ""
    """Of the journal's first bytes, and of those before the offset."""
    digest: str = ""
    """Of the columns."""


def cache_directory() -> Path:
    """Where caches go, as XDG says."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "paceline"


def load(journal: Path) -> tuple[Stored, list[Floats]] | None:
    """What is stored for a journal, with the columns of axes and metrics; None if there is nothing that fits."""
    path = _file_for(journal)
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(4), "little")
            stored = msgspec.json.decode(file.read(length), type=Stored)
            if stored.version != _VERSION or stored.journal != str(journal) or stored.mark != _mark(journal, stored):
                return None
            count = len(stored.axes) + len(stored.metrics)
            content = file.read(count * stored.rows * 8 + 1)
        if len(content) != count * stored.rows * 8 or xxhash.xxh3_64_hexdigest(content) != stored.digest:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # in use, and so not the first to go
    except (OSError, msgspec.DecodeError, OverflowError):
        return None
    return stored, list(np.frombuffer(content, np.float64).reshape(count, stored.rows))


def save(stored: Stored, columns: Sequence[Floats]) -> None:
    """Store the columns of a journal's beginning. Failing to, for example on a full disk, only costs time later."""
    contents = [np.ascontiguousarray(column).data.cast("B") for column in columns]
    digest = xxhash.xxh3_64()
    for content in contents:
        digest.update(content)
    stored.digest = digest.hexdigest()
    journal = Path(stored.journal)
    path = _file_for(journal)
    with contextlib.suppress(OSError, UnicodeEncodeError):
        stored.mark = _mark(journal, stored)
        header = msgspec.json.encode(stored)
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(len(header).to_bytes(4, "little") + header)
                file.writelines(contents)
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)
        _make_room(path.parent)


def _file_for(journal: Path) -> Path:
    name = hashlib.blake2b(os.fsencode(journal), digest_size=12).hexdigest()
    return cache_directory() / "columns" / f"{name}{_SUFFIX}"


def _mark(journal: Path, stored: Stored) -> str:
    """Two samples of the journal and its inode; raises OSError if it is shorter than it was."""
    with open(journal, "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_size < stored.offset:
            raise OSError(f"{journal} was shortened")
        first = file.read(min(_SAMPLE, stored.offset))
        file.seek(max(0, stored.offset - _SAMPLE))
        last = file.read(min(_SAMPLE, stored.offset))
    return f"{found.st_dev}:{found.st_ino}:{xxhash.xxh3_128_hexdigest(first + last)}"


def _make_room(folder: Path) -> None:
    files = [(path.stat(), path) for path in folder.glob(f"*{_SUFFIX}") if not path.is_symlink()]
    total = sum(found.st_size for found, _ in files)
    for found, path in sorted(files, key=lambda each: each[0].st_mtime):
        if total <= MOST_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= found.st_size
