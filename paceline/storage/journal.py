"""The append-only record of a run, or of a search.

One record is one line: CRC-32 of the JSON as eight hex digits, its length in bytes, the
JSON. A driver that dies while writing leaves a torn last line, which the next reader
drops; every earlier record is whole. Rows survive the death of the driver once they are
flushed, and a power cut once they are synced; a thread syncs what was flushed every 50 ms.
With the first sync the names of the file and of its directory are made durable, too.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from paceline.air.errors import JournalCorruptError, StorageError
from paceline.air.faults import fault_point
from paceline.air.process import own_pid
from paceline.storage.files import PRIVATE_FILE_MODE, SharedSync, storage_error, sync_names, write_all

_BUFFER_LIMIT = 256 * 1024
_TAIL_BYTES = 256 * 1024
"""Many times the record that says how a run ended."""

_encode_finite = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Tail:
    """What is still to be written, and the offset in the file where it belongs."""

    __slots__ = ("lines", "offset", "size")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.lines: list[bytes] = []
        self.size = 0


class Journal:
    """Appends records to a journal file; the torn tail of an earlier life is cut off at opening.

    It belongs to the process that opened it: in a forked child every method does nothing.
    """

    def __init__(self, path: Path, shared_sync: SharedSync | None = None) -> None:
        self.path = path
        self._syncs = shared_sync or SharedSync()
        """Syncs what was flushed, soon after. One that is shared also syncs and closes the file after the end."""
        self._is_alone = shared_sync is None
        self._pid = own_pid()
        self._error: StorageError | None = None
        self._lock = threading.Lock()
        """Guards the tail and the file's end."""
        self._sync_lock = threading.Lock()
        """One fsync at a time: the system reports a lost write to one caller only; the others must see its verdict."""
        self._names: tuple[Path, ...] = (path.parent, path.parent.parent)
        """Directories that are still to be synced, because the file and its own directory may be new in them."""
        self._is_dirty = False
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, PRIVATE_FILE_MODE)
        except OSError as error:
            raise storage_error(error, path, "opening the journal") from error
        try:
            self._tail = _Tail(end_of_whole_records(path))
            self.dropped_bytes = os.fstat(self._descriptor).st_size - self._tail.offset
            """The length of the torn tail that was found and cut off."""
            if self.dropped_bytes:
                os.ftruncate(self._descriptor, self._tail.offset)
        except BaseException:
            os.close(self._descriptor)
            raise

    def append(self, record: msgspec.Struct | Mapping[str, Any], *, finite: bool = True) -> None:
        """Add a record. `finite=False` keeps NaN and infinities, which the fast encoder would turn into null."""
        self.append_raw(encode_record(record, finite=finite))

    def append_raw(self, body: bytes) -> None:
        """Add a record that is JSON already."""
        if own_pid() != self._pid:
            return
        line = b"%08x %d %b\n" % (crc32(body), len(body), body)
        with self._lock:
            if self._error is not None:
                raise self._error
            self._tail.lines.append(line)
            self._tail.size += len(line)
            if self._tail.size >= _BUFFER_LIMIT:
                self._write_tail()

    def flush(self) -> None:
        """Hand everything to the system: it survives the death of this process."""
        if not self._tail.lines and self._error is None:
            return
        if own_pid() != self._pid:
            return
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._tail.lines:
                self._write_tail()

    def sync(self) -> None:
        """Put everything on disk before returning."""
        if own_pid() != self._pid:
            return
        self.flush()
        self._sync_file()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Sync and close. Closing twice is fine."""
        if own_pid() != self._pid or self._descriptor < 0:
            return
        if not self._is_alone:
            self._close_later()
            return
        try:
            if self._error is None:
                self.sync()
        finally:
            self._syncs.close()
            os.close(self._descriptor)
            self._descriptor = -1

    def _close_later(self) -> None:
        try:
            if self._error is None:
                self.flush()
        finally:
            self._syncs.forget(id(self))
            with self._sync_lock:  # a sync may be under way
                descriptor, self._descriptor = self._descriptor, -1
            self._syncs.take_over(descriptor, self._names)

    def _write_tail(self) -> None:
        """Write what is due. A signal's exception may come at any point: the tail is then written again."""
        tail = self._tail
        content = b"".join(tail.lines)
        fault_point("before_journal_append")
        try:
            self._cut_unfinished_write()
            write_all(self._descriptor, content)
        except OSError as error:
            self._error = storage_error(error, self.path, "writing the journal", needed=len(content))
            self._try_to_cut()
            raise self._error from error
        except BaseException:
            self._try_to_cut()
            raise
        # One assignment, so that the tail and its place in the file never disagree.
        self._tail = _Tail(tail.offset + len(content))
        fault_point("after_journal_append")
        if not self._is_dirty:  # else a sync is due, which clears this before it begins
            self._is_dirty = True
            self._syncs.note(id(self), self._sync_file)

    def _cut_unfinished_write(self) -> None:
        """What stands behind the known end was written by an attempt that was interrupted or failed."""
        size = os.fstat(self._descriptor).st_size
        if size > self._tail.offset:
            os.ftruncate(self._descriptor, self._tail.offset)
        elif size < self._tail.offset:
            raise OSError(errno.EIO, "the file was shortened while the run was writing it")

    def _try_to_cut(self) -> None:
        """After a failed write the file ends with a whole record again."""
        with contextlib.suppress(OSError):  # readers drop a torn tail anyway
            self._cut_unfinished_write()

    def _sync_file(self) -> None:
        """fsync unless nothing is dirty. After a failure the file's state is unknown: never try again."""
        with self._sync_lock:
            if self._error is not None or not self._is_dirty or self._descriptor < 0:
                return
            self._is_dirty = False
            try:
                os.fdatasync(self._descriptor)
                self._check_is_in_place()
                for directory in self._names:
                    sync_names(directory)
                self._names = ()
            except OSError as error:
                self._error = storage_error(error, self.path, "syncing the journal")

    def _check_is_in_place(self) -> None:
        """A file that was deleted, or whose disk was unmounted, takes records that nobody will ever read."""
        ours = os.fstat(self._descriptor)
        if ours.st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the file was deleted while the run was writing it")
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "the storage was unmounted or moved while the run used it") from None
        if not os.path.samestat(ours, found):
            raise OSError(errno.ESTALE, "another file or disk took its place while the run was writing it")


def encode_record(record: msgspec.Struct | Mapping[str, Any], *, finite: bool = True) -> bytes:
    """The JSON of a record, on one line."""
    if finite:
        try:
            return _encode_finite(record)
        except (UnicodeEncodeError, OverflowError):
            pass  # lone surrogates of odd file names, integers beyond 64 bit: slower, but exact
    return _encode_exactly(_as_dict(record) if isinstance(record, msgspec.Struct) else record).encode()


def _as_dict(record: msgspec.Struct) -> dict[str, Any]:
    """What the fast encoder would write: the tag first, and no fields that are unset or have their default."""
    values, left_out = _shape(type(record))
    values = dict(values)
    for name, default in left_out.items():
        value = getattr(record, name)
        if value is not msgspec.UNSET and value is not default:
            values[name] = value
    return values


@functools.cache
def _shape(kind: type[msgspec.Struct]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the tag by its name, the value at which each field is left out)"""
    config = kind.__struct_config__
    tag = {} if config.tag_field is None else {config.tag_field: config.tag}
    fields = msgspec.structs.fields(kind)
    return tag, {field.name: field.default if config.omit_defaults else msgspec.UNSET for field in fields}


def _inner(value: Any) -> dict[str, Any] | tuple[Any, ...]:
    """A struct within a record."""
    if not isinstance(value, msgspec.Struct):
        raise TypeError(f"{type(value).__name__} is not plain data")
    return msgspec.structs.astuple(value) if value.__struct_config__.array_like else _as_dict(value)


_encode_exactly = json.JSONEncoder(separators=(",", ":"), default=_inner).encode


def decode_record(body: bytes) -> Any:
    """The record that `encode_record` encoded, as plain values."""
    try:
        return _decode(body)
    except msgspec.DecodeError:
        return json.loads(body)  # NaN and infinities


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole record, in order. A torn tail is dropped; damage before the end is a StorageError.

    FileNotFoundError passes as it is: a directory without a journal holds no run.
    """
    for body, _ in whole_records(path):
        yield decode_record(body)


def end_of_whole_records(path: Path) -> int:
    """How long a journal is without a torn tail."""
    end = 0
    for _, offset in whole_records(path):
        end = offset
    return end


def whole_records(path: Path, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """The JSON of each whole record from an offset on, and the offset behind it."""
    try:
        with open(path, "rb") as file:
            if start:
                if start > os.fstat(file.fileno()).st_size:
                    raise StorageError(f"journal {path} was shortened: it ends before byte {start}.")
                file.seek(start)
            yield from records_in(file, start, str(path))
    except (StorageError, FileNotFoundError):
        raise
    except OSError as error:
        raise storage_error(error, path, "reading the journal") from error


def records_in(lines: Iterable[bytes], start: int, label: str) -> Iterator[tuple[bytes, int]]:
    """The same for lines from anywhere; `label` names their place in an error."""
    offset, lines = start, iter(lines)
    for line in lines:
        body = body_of(line)
        if body is None:
            if not line.endswith(b"\n"):  # the last line when it was read: whoever writes it may have gone on since
                return
            if any(body_of(later) is not None for later in lines):
                raise JournalCorruptError(
                    f"journal {label} is damaged at byte {offset}: a record there does not match its checksum, "
                    "though whole records follow. Restore the file from a copy; what stands before that byte is sound."
                )
            return
        offset += len(line)
        yield body, offset


def last_records(path: Path) -> list[bytes]:
    """The JSON of the whole records among the last bytes of a journal, in order; a torn line is left out."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().splitlines(keepends=True)
    except OSError as error:
        raise storage_error(error, path, "reading the journal") from error
    return [body for line in lines if (body := body_of(line)) is not None]


def body_of(line: bytes) -> bytes | None:
    """The JSON of a line, or None if the line is not a whole record."""
    if len(line) < 12 or line[-1:] != b"\n":
        return None
    separator = line.find(b" ", 9)
    if line[8:9] != b" " or separator < 0:
        return None
    body = line[separator + 1 : -1]
    if line[:separator] != b"%08x %d" % (crc32(body), len(body)):
        return None
    return body
