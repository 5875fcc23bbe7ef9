"""A file as it was listed, and opening it only if it is still the same."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.air.errors import DataError
from paceline.air.secrets import without_credentials
from paceline.engine.places import ADDRESS_VARIABLE

if TYPE_CHECKING:
    import pyarrow as pa

DETECT = "detect"
_REMOTE_READ_AHEAD = 8 << 20
_STAMPS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "modified", "created")
"""What file systems call the thing that changes with the content, the most reliable first."""


@dataclass(frozen=True)
class ListedFile:
    """A file as it was when it was listed."""

    path: str
    size: int
    stamp: str
    """ "name=value" of what the file system says of this version of the file; empty: it says nothing."""
    filesystem: Any = None
    """An fsspec filesystem; None: this machine's files."""
    below: str = ""
    """The part of the path below the directory that the user gave."""
    compression: str | None = DETECT
    """The codec of the content; "detect": what the file's name says."""

    @property
    def label(self) -> str:
        """The file as a message should name it."""
        if self.filesystem is None:
            return self.path
        return without_credentials(str(self.filesystem.unstrip_protocol(self.path)))


# -- what tells one version of a file from another ----------------------------------------


def local_state(status: os.stat_result) -> tuple[int, str]:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(None, "it is neither a file nor a directory")
    return status.st_size, f"mtime_ns={status.st_mtime_ns}"


def stamp_of(info: dict[str, Any], name: str | None = None) -> str:
    """The stamp in what a filesystem says of a file: of this name, or the first there is."""
    for key in _STAMPS if name is None else (name,):
        value = info.get(key)
        if value:
            if hasattr(value, "timestamp"):
                value = value.timestamp()
            # The same file system gives times now as dates, now as numbers, with and without fractions.
            text = str(int(value)) if isinstance(value, float) else str(value).strip('"')
            return f"{key}={text}"
    return ""


# -- opening ------------------------------------------------------------------------------


def open_checked(entry: ListedFile, *, ranges: bool = False) -> pa.NativeFile:
    """Open a listed file, or raise DataError if it is not the file that was listed any more.

    `ranges`: the caller reads exactly what it needs, so that reading ahead would be a waste.
    """
    try:
        return _open_local(entry) if entry.filesystem is None else _open_remote(entry, ranges)
    except FileNotFoundError:
        if entry.filesystem is None and ADDRESS_VARIABLE in os.environ:  # in a worker that may be on another machine
            raise DataError(
                f"{entry.label} is not there on {socket.gethostname()}, or was deleted. Use a path that all machines "
                "share, a URI, or pass the dataset to the trainer by datasets=."
            ) from None
        raise DataError(
            f"{entry.label} was deleted after it had been listed ({entry.size:,} bytes). Create the dataset again."
        ) from None
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{entry.label} cannot be opened: {error}") from error


def check_unchanged(entry: ListedFile) -> None:
    """For a file that is kept open: raise DataError if it was replaced or written to. Costs no request."""
    if entry.filesystem is None:
        try:
            size, stamp = local_state(os.stat(entry.path))
        except FileNotFoundError:
            return  # deleted, but the open file still has all of its content
        _compare(entry, size, stamp)


def _open_local(entry: ListedFile) -> pa.NativeFile:
    import pyarrow as pa

    file = pa.OSFile(entry.path)
    try:
        _compare(entry, *local_state(os.stat(entry.path)))
    except BaseException:
        file.close()
        raise
    return file


def _open_remote(entry: ListedFile, ranges: bool) -> pa.NativeFile:
    import pyarrow as pa
    from fsspec.implementations.arrow import ArrowFSWrapper

    name = entry.stamp.partition("=")[0]
    if isinstance(entry.filesystem, ArrowFSWrapper):  # its own files need no Python to be read
        info = entry.filesystem.info(entry.path)
        _compare(entry, info["size"], stamp_of(info, name))
        return entry.filesystem.fs.open_input_file(entry.path)
    caching = {"cache_type": "none"} if ranges else {"cache_type": "readahead", "block_size": _REMOTE_READ_AHEAD}
    opened = entry.filesystem.open(entry.path, "rb", **caching)
    try:
        # What opening has asked the server already (s3fs: and it then reads this version or fails) saves a request.
        info = getattr(opened, "details", None) or entry.filesystem.info(entry.path)
        _compare(entry, info["size"], stamp_of(info, name) if name else "")
    except BaseException:
        opened.close()
        raise
    return pa.PythonFile(opened, mode="r")


def _compare(entry: ListedFile, size: int, stamp: str) -> None:
    if size == entry.size and (stamp == entry.stamp or not stamp or not entry.stamp):
        return
    raise DataError(
        f"{entry.label} changed after it had been listed: then {entry.size:,} bytes ({entry.stamp}), "
        f"now {size:,} bytes ({stamp}). Create the dataset again."
    )
