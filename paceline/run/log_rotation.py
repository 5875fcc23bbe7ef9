"""Keeps the logs of a run's workers below a limit: what is in a log that is too long moves to one older file.

The content is copied and the log truncated, because a worker's own children hold its descriptor. All of them
append, so what they write next stands at the beginning of the log. What they write during the copy is copied
too. If they write as fast as that, the rest is lost: a line at the end of the older file says how much. Only what
comes in the microseconds between the last look at the size and the truncation is not counted.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from paceline.run.follow import LogFollower, older_log
from paceline.storage.files import PRIVATE_FILE_MODE, write_all

LOOK_EVERY_S = 1.0
AFTER_FAILURE_S = 60.0
"""When to try again after a copy that could not be written."""
_CHUNK_BYTES = 1024 * 1024
MOST_PASSES = 10
"""How often a copy takes what was written meanwhile. Each time that is less, unless a writer is as fast as the copy."""


class LogRotation:
    """Looks at the logs now and then. Copying takes place in a thread, because a driver must not wait for a disk.

    The follower leaves a log alone while it is copied, and learns where to continue.
    """

    def __init__(
        self,
        paths: Mapping[int, Path],
        limit: int | None,
        follower: LogFollower | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._paths = paths
        self._limit = limit
        self._follower = follower
        self._warn = warn
        self._look_at = 0.0
        self._thread: threading.Thread | None = None
        self._copied: dict[int, int] = {}
        """Of each rank whose log was truncated: how much of it is in the older file."""
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
        self._look_at = now + LOOK_EVERY_S
        if due := [rank for rank, path in self._paths.items() if _size(path) > self._limit]:
            thread = threading.Thread(target=self._rotate, args=(due,), name="paceline-logs", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread can be had now; perhaps in a second
                thread.start()
                self._thread = thread
                if self._follower is not None:
                    self._follower.pause(due)

    def wait(self) -> None:
        """Let what has begun come to its end. It takes as long as copying the logs does."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._follower is not None:
                self._follower.resume(self._copied)
            self._copied = {}
            if self._problem is not None:
                self._look_at = time.monotonic() + AFTER_FAILURE_S
                if self._warn is not None:
                    self._warn(f"A worker's log is longer than max_log_bytes and cannot be shortened: {self._problem}")
                self._problem = self._warn = None  # said once

    def _rotate(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            try:
                self._copied[rank] = _move_content(self._paths[rank])
            except OSError as error:
                self._problem = error  # the log stays as it is


def _move_content(path: Path) -> int:
    """Move what is in the file to the older one; returns the size of that.

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
            copied = _copy(source, target, 0)
            os.replace(
                temporary, older
            )  # Before the rest, so that nothing is between the last copy and the truncation.
            for _ in range(MOST_PASSES):  # A writer that is as fast as the copy would keep it going forever.
                before, copied = copied, _copy(source, target, copied)
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
        return os.fstat(target).st_size


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
