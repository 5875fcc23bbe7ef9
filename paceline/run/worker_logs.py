"""The log files of a run's workers: they are followed, so that output can be shown, and kept below a limit.

What is in a log that is too long moves to one older file. The content is copied and the log truncated, because a
worker's own children hold its descriptor. All of them append, so what they write next stands at the beginning of the
log. What they write during the copy is copied too. If they write as fast as that, the rest is lost: a line at the end
of the older file says how much. Only what comes in the microseconds between the last look at the size and the
truncation is not counted.

A worker may write many times the limit before the next look. Then only the end of the log is kept: the older file holds
at most `MOST_OLDER` times the limit.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from paceline.air.constants import OLDER_LOG_SUFFIX
from paceline.storage.files import PRIVATE_FILE_MODE, write_all

CHUNK_BYTES = 64 * 1024
"""A line longer than this comes in pieces: no worker can make the driver hold much."""
_MOST_ROUNDS = 64
"""How many chunks of each rank are read at once where a row waits to be shown after them."""


class Moved(NamedTuple):
    """What became of a log that was too long: it is empty, and its end is in the older file."""

    size: int
    """Of the older file."""
    dropped: int = 0
    """Bytes at the beginning of the log that are in no file any more."""


def older_log(path: Path) -> Path:
    """Where the content of a log goes that has become too long."""
    return path.with_name(path.name + OLDER_LOG_SUFFIX)


MANY_LOGS = 32
PAUSE_PER_LOG_S = 50e-6
"""With many logs: about 20 times as long as a look at one of them takes."""


class LogFollower:
    """Reads what was added to each rank's log file, in complete lines.

    Each item is (rank, text); the text holds one or more complete lines. Only a line longer
    than `CHUNK_BYTES`, and a last line without an end, come as text that does not end in
    a newline. Bytes that are not UTF-8 are shown as replacement characters.
    """

    def __init__(self, paths: Mapping[int, Path], *, from_end: bool = False) -> None:
        self._files = {rank: _FollowedFile(path, from_end) for rank, path in paths.items()}
        self._paused: set[int] = set()
        self._read_at = 0.0

    def read(self) -> Iterator[tuple[int, str]]:
        """What is new: at most one chunk per rank, so that a flood of output delays nothing else.

        Called often. With many logs it mostly does nothing: to look at each of them takes its time.
        """
        now = time.monotonic()
        if now < self._read_at:
            return
        if len(self._files) > MANY_LOGS:
            self._read_at = now + PAUSE_PER_LOG_S * len(self._files)
        yield from self._round()

    def read_all(self) -> Iterator[tuple[int, str]]:
        """What has been written so far; not all of it if workers write faster than this reads."""
        for _ in range(_MOST_ROUNDS):
            found = self._round()
            if not found:
                return
            yield from found

    def drain(self) -> Iterator[tuple[int, str]]:
        """All that is left, including a last line without an end. For when the workers have ended."""
        self._paused.clear()
        while any(file.has_more() for file in self._files.values()):
            yield from self._round()
        for rank, file in self._files.items():
            if text := file.rest():
                yield rank, text

    def _round(self) -> list[tuple[int, str]]:
        """A chunk of each rank that has one. What was written last comes last, as far as the files tell."""
        found = []
        for rank, file in self._files.items():
            if rank not in self._paused and (text := file.read()):
                found.append((file, rank, text))
        if len(found) > 1:
            found.sort(key=lambda each: each[0].changed_ns())
        return [(rank, text) for _, rank, text in found]

    def pause(self, ranks: Iterable[int]) -> None:
        """Leave these logs alone: their content is being moved to the older file."""
        self._paused.update(ranks)

    def resume(self, moved: Mapping[int, Moved]) -> None:
        """Read all logs again. `moved` are those that are empty now."""
        self._paused.clear()
        for rank, what in moved.items():
            self._files[rank].moved(what)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _FollowedFile:
    def __init__(self, path: Path, from_end: bool) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = b""
        """The beginning of a line whose end has not been written yet."""
        self._position = 0
        self._older: int | None = None
        """The descriptor of the older file while something in it is still to be read."""
        self._older_end = 0
        self._skipped = 0
        """Bytes that were dropped from the older file before they could be read."""
        if from_end and path.exists():
            self._position = path.stat().st_size

    def read(self) -> str:
        """The complete lines of the next chunk; a piece of one if it is longer than a chunk."""
        chunk = self._read_chunk()
        end = chunk.rfind(b"\n") + 1
        if end:
            ready, self._partial = self._partial + chunk[:end], chunk[end:]
        elif len(self._partial) + len(chunk) >= CHUNK_BYTES:
            ready, self._partial = self._partial + chunk, b""
        else:
            self._partial += chunk
            return ""
        return self._decoder.decode(self._notice() + ready)

    def changed_ns(self) -> int:
        """When something was last written."""
        return 0 if self._descriptor is None else os.fstat(self._descriptor).st_mtime_ns

    def rest(self) -> str:
        """What stands after the last newline."""
        partial, self._partial = self._partial, b""
        return self._decoder.decode(partial, final=True)

    def moved(self, what: Moved) -> None:
        """The content of the log, or its end, is in the older file, and the log is empty."""
        size = what.size
        if self._older is not None:
            self._skipped += self._older_end - self._position
            self._position = 0
            self._leave_older()
        self._skipped += max(0, what.dropped - self._position)
        self._position = max(0, self._position - what.dropped)
        if self._position < size:
            try:
                self._older, self._older_end = os.open(older_log(self._path), os.O_RDONLY | os.O_CLOEXEC), size
                return
            except OSError:  # somebody has removed it
                self._skipped += size - self._position
        self._position = 0

    def _notice(self) -> bytes:
        skipped, self._skipped = self._skipped, 0
        return b"" if not skipped else b"(%d bytes of output are not shown, there was too much of it)\n" % skipped

    def has_more(self) -> bool:
        if self._older is not None:
            return True
        descriptor = self._open()
        return descriptor is not None and os.fstat(descriptor).st_size > self._position

    def close(self) -> None:
        self._leave_older()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _leave_older(self) -> None:
        if self._older is not None:
            os.close(self._older)
            self._older = None

    def _read_chunk(self) -> bytes:
        if self._older is not None:
            chunk = os.pread(self._older, min(CHUNK_BYTES, self._older_end - self._position), self._position)
            self._position += len(chunk)
            if not chunk or self._position >= self._older_end:
                self._position = 0
                self._leave_older()
            return chunk
        descriptor = self._open()
        if descriptor is None:
            return b""
        chunk = os.pread(descriptor, CHUNK_BYTES, self._position)
        self._position += len(chunk)
        return chunk

    def _open(self) -> int | None:
        """The log appears when its worker starts, so a missing file is no error."""
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        return self._descriptor


LOOK_EVERY_S = 1.0
MOST_OLDER = 2
"""Times the limit: a log at an ordinary pace is hardly longer than the limit when it is moved."""
AFTER_FAILURE_S = 60.0
"""When to try again after a copy that could not be written."""
_CHUNK_BYTES = 1024 * 1024
MOST_PASSES = 10
"""How often a copy takes what was written meanwhile. Each time that is less, unless a writer is as fast as the copy."""


class LogWatcher(Protocol):
    """Somebody who looks at the logs while they grow."""

    def pause(self, ranks: Iterable[int]) -> None: ...

    def resume(self, moved: Mapping[int, Moved]) -> None: ...


class LogRotation:
    """Looks at the logs now and then. Copying takes place in a thread, because a driver must not wait for a disk.

    Those who watch the logs leave one alone while it is copied, and learn where to continue.
    """

    def __init__(
        self,
        paths: Mapping[int, Path],
        limit: int | None,
        watchers: Sequence[LogWatcher] = (),
        warn: Callable[[str], None] | None = None,
        truncated: Callable[[int, Moved], None] | None = None,
    ) -> None:
        """`truncated` is called in the thread, with a rank and what became of its log."""
        self._paths = paths
        self._limit = limit
        self._watchers = watchers
        self._warn = warn
        self._truncated = truncated
        self._look_at = 0.0
        self._thread: threading.Thread | None = None
        self._copied: dict[int, Moved] = {}
        """By rank, the logs that were truncated."""
        self._problem: OSError | None = None

    def look(self, *, at_once: bool = False) -> None:
        """Begin to rotate the logs that are too long. Called often, so it mostly does nothing."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self.wait()
        now = time.monotonic()
        if self._limit is None or (now < self._look_at and not at_once):
            return
        self._look_at = now + LOOK_EVERY_S * max(1.0, len(self._paths) / MANY_LOGS / 10)
        if due := [rank for rank, path in self._paths.items() if _size(path) > self._limit]:
            thread = threading.Thread(target=self._rotate, args=(due,), name="paceline-logs", daemon=True)
            for watcher in self._watchers:
                watcher.pause(due)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError:  # no thread can be had now; perhaps in a second
                for watcher in self._watchers:
                    watcher.resume({})

    def wait(self) -> None:
        """Let what has begun come to its end. It takes as long as copying the logs does."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            for watcher in self._watchers:
                watcher.resume(self._copied)
            self._copied = {}
            if self._problem is not None:
                self._look_at = time.monotonic() + AFTER_FAILURE_S
                if self._warn is not None:
                    self._warn(f"A worker's log is longer than max_log_bytes and cannot be shortened: {self._problem}")
                self._problem = self._warn = None  # said once

    def _rotate(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            try:
                self._copied[rank] = moved = _move_content(self._paths[rank], MOST_OLDER * (self._limit or 0))
                if self._truncated is not None:
                    self._truncated(rank, moved)
            except OSError as error:
                self._problem = error  # the log stays as it is


def _move_content(path: Path, most: int) -> Moved:
    """Move what is in the file, or the last `most` bytes of it, to the older one.

    The copy has a name of its own until it is complete, so that a full disk does not cost the older file.
    """
    older = older_log(path)
    temporary = older.with_name(f".{older.name}.tmp")
    with contextlib.ExitStack() as stack:
        source = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, source)
        target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE_MODE)
        stack.callback(os.close, target)
        try:
            dropped = max(0, os.fstat(source).st_size - most)
            copied = _copy(source, target, dropped)
            # Before the rest, so that nothing is between the last copy and the truncation.
            os.replace(temporary, older)
            for _ in range(MOST_PASSES):  # A writer that is as fast as the copy would keep it going forever.
                before = copied
                if os.fstat(source).st_size - dropped > most:  # start again, further behind
                    dropped = os.fstat(source).st_size - most
                    os.ftruncate(target, 0)
                    os.lseek(target, 0, os.SEEK_SET)
                    before = copied = dropped
                copied = _copy(source, target, copied)
                if copied == before:
                    break
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            error.filename = error.filename or str(older)  # a failed write does not name its file
            raise
        lost = os.fstat(source).st_size - copied
        os.ftruncate(source, 0)
        if lost > 0:
            with contextlib.suppress(OSError):  # the disk is full
                write_all(target, b"\n(%d bytes of output are lost, written while this log was moved)\n" % lost)
        return Moved(os.fstat(target).st_size, dropped)


def _copy(source: int, target: int, start: int) -> int:
    """Copy from `start` to where the source ends now; returns where that is."""
    end = os.fstat(source).st_size
    while start < end and (chunk := os.pread(source, min(_CHUNK_BYTES, end - start), start)):
        write_all(target, chunk)
        start += len(chunk)
    return start


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it appears when its worker starts
        return 0
