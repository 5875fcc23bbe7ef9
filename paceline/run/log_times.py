"""When a worker's log was how long, so that the logs of several ranks can be read in the order of time.

The driver looks at the logs now and then and notes what has grown, in `rank_k.log.times`: 16 bytes each, the length of
the log and the driver's wall clock. The clocks of the workers play no part. A crash may leave half of a last note,
which is ignored.

When the content of a log moves to its older file, so do the notes. The first note of a file says how many bytes the log
had got before, so that a position in a log means the same after it was moved. While it is moved, its content is in both
files for a moment; a mark that this is so is the last note then.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import struct
import time
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.run.worker_logs import Moved
from paceline.storage.files import PRIVATE_FILE_MODE, write_all

LOOK_EVERY_S = 0.1
PAUSE_PER_LOG_S = 500e-6
"""With many logs in one driver, such as those of many trials: about 200 times as long as a look at one takes."""
_NOTE = struct.Struct("<Qd")
_BEGINNING, _MOVING, _SETTLED = -1.0, -2.0, -3.0
"""Instead of a time, where a note is not about one."""

_logs_here = 0
"""How many logs this process looks at."""


def times_path(log: Path) -> Path:
    """Where the notes about a log are; its older file has its own."""
    return log.with_name(f"{log.name}.times")


class LogTimes:
    """Notes when the logs of a run grow. Use it from one thread; a log that cannot be looked at is left out."""

    def __init__(self, paths: Mapping[int, Path], older: Mapping[int, Path]) -> None:
        global _logs_here
        self._paths = {rank: str(path) for rank, path in paths.items()}
        self._times = {rank: times_path(path) for rank, path in paths.items()}
        self._older = older
        self._older_times = {rank: times_path(path) for rank, path in older.items()}
        self._sizes = dict.fromkeys(paths, -1)
        """As they were noted; -1: not looked at yet."""
        self._paused: set[int] = set()
        self._look_at = 0.0
        self._is_closed = False
        _logs_here += len(self._paths)

    def look(self, *, at_once: bool = False) -> None:
        """Note what has grown. Called often, so it mostly does nothing."""
        now = time.monotonic()
        if now < self._look_at and not at_once:
            return
        self._look_at = now + max(LOOK_EVERY_S, PAUSE_PER_LOG_S * _logs_here)
        wall = time.time()
        for rank, path in self._paths.items():
            if rank not in self._paused:
                try:
                    size = os.stat(path).st_size
                except OSError:  # it appears when its worker starts
                    continue
                if size != self._sizes[rank]:
                    self._grown(rank, size, wall)

    def _grown(self, rank: int, size: int, wall: float) -> None:
        known = self._sizes[rank]
        self._sizes[rank] = size
        with contextlib.suppress(OSError):  # a full disk: the lines are shown without their time
            if known < 0:
                known = self._take_up(rank, size)
            if size < known:  # somebody has truncated it
                _start_anew(self._times[rank], 0)
            if size and size != known:
                _append(self._times[rank], _NOTE.pack(size, wall))

    def _take_up(self, rank: int, size: int) -> int:
        """Continue the notes of an earlier driver, which may have been killed while it moved a log."""
        path = self._times[rank]
        notes = read_times(path)
        if notes is None or not notes.sizes or notes.sizes[-1] > size:
            if size or notes is not None:
                was_moved = notes is not None and notes.is_moving
                _start_anew(path, notes.base + _size(self._older[rank]) if notes is not None and was_moved else 0)
            return 0
        if torn := os.stat(path).st_size % _NOTE.size:
            os.truncate(path, os.stat(path).st_size - torn)
        return notes.sizes[-1]

    def pause(self, ranks: Iterable[int]) -> None:
        """Leave these logs alone: their content is being moved to the older file."""
        self.look(at_once=True)
        self._paused.update(ranks)
        self._mark(ranks, _MOVING)

    def _mark(self, ranks: Iterable[int], mark: float) -> None:
        for rank in ranks:
            with contextlib.suppress(OSError):
                _append(self._times[rank], _NOTE.pack(max(0, self._sizes[rank]), mark))

    def truncated(self, rank: int, moved: Moved) -> None:
        """A log that is paused is empty now, and its end is in the older file. Called where the log was moved, at once:
        who reads the log meanwhile must not take it for one that has not been moved."""
        path, older = self._times[rank], self._older_times[rank]
        self._sizes[rank] = 0
        with contextlib.suppress(OSError):
            end = moved.dropped + moved.size
            _append(path, _NOTE.pack(end, time.time()) + _NOTE.pack(end, _MOVING))
            notes = read_times(path) or Times()
            temporary = path.with_name(f".{path.name}.tmp")
            _start_anew(temporary, notes.base + end)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(older)
            if moved.dropped:
                _start_anew(older, notes.base + moved.dropped)
                _append(older, notes.after(moved.dropped))
            else:
                os.link(path, older)
            os.replace(temporary, path)  # the notes are there at any time

    def resume(self, moved: Mapping[int, Moved]) -> None:
        """Look at all logs again; `moved` are those that are empty now."""
        self._mark(self._paused - moved.keys(), _SETTLED)
        self._paused.clear()

    def close(self) -> None:
        """Note the last lines."""
        global _logs_here
        if not self._is_closed:
            self._is_closed = True
            self.look(at_once=True)
            _logs_here -= len(self._paths)


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _start_anew(path: Path, base: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    _append(path, _NOTE.pack(base, _BEGINNING))


def _append(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, PRIVATE_FILE_MODE)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)


@dataclass
class Times:
    """The notes about one file."""

    base: int = 0
    """How many bytes its log had got before the file begins."""
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    walls: array[float] = field(default_factory=lambda: array("d"))
    is_moving: bool = False
    """The content of the log is just being moved to its older file, or a driver died while it did so."""

    def at(self, end: int) -> float | None:
        """When what ends at an offset of the file was there; None if that was not noted."""
        found = bisect.bisect_left(self.sizes, end)
        return self.walls[found] if found < len(self.walls) else None

    def after(self, start: int) -> bytes:
        """The notes about what stands behind an offset, for a file that begins there."""
        pairs = zip(self.sizes, self.walls, strict=True)
        return b"".join(_NOTE.pack(size - start, wall) for size, wall in pairs if size > start)

    def offset_at(self, wall: float) -> int:
        """How long the file was, at least, just before a time."""
        found = bisect.bisect_left(self.walls, wall)
        return self.sizes[found - 1] if found else 0


def read_times(path: Path) -> Times | None:
    """The notes in a file, in order; None if there are none. Notes that cannot be are left out."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    times = Times()
    size, wall = 0, 0.0
    for noted, moment in _NOTE.iter_unpack(content[: len(content) // _NOTE.size * _NOTE.size]):
        times.is_moving = moment == _MOVING
        if moment == _BEGINNING and not times.sizes:
            times.base = noted
        elif noted > size and moment > 0:
            size, wall = noted, max(wall, moment)  # a clock that was set back must not change the order of lines
            times.sizes.append(size)
            times.walls.append(wall)
    return times
