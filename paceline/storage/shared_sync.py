"""Puts the files of many journals on disk from one thread.

A search runs thousands of short trials, each with a journal of its own: a thread and a wait
for the disk for each of them would cost more than the trials. What was flushed survives the
death of the driver in any case; this thread makes it survive a power cut, every 50 ms.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from paceline.air.background_pool import BackgroundPool
from paceline.storage.files import sync_names

SYNC_SECONDS = 0.05
MOST_WAITING = 256
"""Closed files whose descriptors are still open because the disk lags behind; beyond it the caller waits."""


class SharedSync:
    """One thread that syncs what it is told about. In a forked child it does nothing."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._working = threading.Lock()
        """One pass at a time: a caller that has to wait waits for the pass under way as well."""
        self._dirty: dict[int, Callable[[], None]] = {}
        self._to_close: list[int] = []
        self._unclosed = 0
        """Those to close, and those that are being closed."""
        self._names: set[Path] = set()
        self._closing = threading.Event()
        self._pool = BackgroundPool("paceline-sync")
        self._is_due = False
        """A pass will be made soon."""

    def note(self, key: int, sync: Callable[[], None]) -> None:
        """Have `sync` called soon, once for however many notes under the same key."""
        with self._lock:
            self._dirty[key] = sync
        self._start()

    def forget(self, key: int) -> None:
        with self._lock:
            self._dirty.pop(key, None)

    def take_over(self, descriptor: int, names: Iterable[Path] = ()) -> None:
        """Sync and close a file that nobody writes any more, and sync the directories that hold its name."""
        with self._lock:
            self._to_close.append(descriptor)
            self._names.update(names)
            self._unclosed += 1
            too_many = self._unclosed > MOST_WAITING
        if too_many:
            self._work_off()
        self._start()

    def close(self) -> None:
        """Everything is on disk when this returns."""
        if os.getpid() != self._pid:
            return
        self._closing.set()
        self._pool.close()
        self._work_off()

    def _start(self) -> None:
        with self._lock:
            if not self._is_due and not self._closing.is_set():
                self._is_due = True
                self._pool.submit(self._make_pass)

    def _make_pass(self) -> None:
        self._closing.wait(SYNC_SECONDS)
        with self._lock:
            self._is_due = False
        self._work_off()

    def _work_off(self) -> None:
        with self._working:
            with self._lock:
                dirty, self._dirty = self._dirty, {}
                to_close, self._to_close = self._to_close, []
                names, self._names = self._names, set()
            for sync in dirty.values():
                sync()
            for descriptor in to_close:
                with contextlib.suppress(OSError):  # its last content was flushed; nobody is left to be told
                    os.fdatasync(descriptor)
                with contextlib.suppress(OSError):  # a network file system may fail here; the others are closed anyway
                    os.close(descriptor)
            with self._lock:
                self._unclosed -= len(to_close)
            for directory in names:
                with contextlib.suppress(OSError):
                    sync_names(directory)
