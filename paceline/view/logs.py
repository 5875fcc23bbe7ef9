"""What the workers of a run have printed: a part of one rank's log, or the lines of several in the order of time.

A position in a log counts the bytes that a rank has ever written. It stays the same when the content of a log that has
become too long moves to its older file; what was in the older file before is gone. Logs are not copied to remote
storage: those of a run there can be read on the machine that drove it.
"""

from __future__ import annotations

import errno
import heapq
import os
import re
import stat
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from paceline.air.errors import LogsNotHereError, RestoreError
from paceline.air.secrets import without_credentials
from paceline.run.log_times import Times, read_times, times_path
from paceline.run.records import no_journal
from paceline.run.worker_logs import older_log
from paceline.storage import lock
from paceline.storage.files import storage_error
from paceline.storage.run_dir import SEARCH_JOURNALS, RunDir, resolve_storage
from paceline.storage.twin import twin_here

LONGEST_LINE = 64 * 1024
"""Bytes; a longer line comes in pieces."""
FOLLOW_EVERY_S = 0.2
_MOST_LOOKS = 20
_LOG = re.compile(r"rank_(\d{1,7})\.log")


class LogPart(Struct):
    """A part of one rank's log: whole lines, except where one is longer than what was asked for."""

    start: int
    end: int
    size: int
    """Where the log ends now."""
    text: str
    older: bool
    """Something comes before it."""


class LogLine(Struct):
    rank: int
    time: float | None
    """When the driver saw that it was there, in seconds since the epoch; None if that is not known."""
    text: str
    """Without its end."""
    start: int = 0
    """Its position in the log of its rank."""


class MergedPart(Struct):
    """A part of several ranks' logs, in the order of time."""

    lines: list[LogLine]
    starts: dict[int, int]
    """Where the part begins in the log of each rank."""
    ends: dict[int, int]
    older: bool
    """Something comes before it."""


def ranks_of(path: str | Path, filesystem: Any = None) -> list[int]:
    """The ranks of a run that have a log."""
    return _ranks(_logs_of(path))


def read_log(
    path: str | Path,
    rank: int,
    *,
    start: int | None = None,
    end: int | None = None,
    before: int | None = None,
    max_bytes: int = 64 * 1024,
    filesystem: Any = None,
) -> LogPart:
    """A part of a rank's log.

    `start` is where an earlier part ended: what follows it, up to `end`. `before` is where an earlier part began: what
    comes before it. Without either, or with a negative `start`, it is the tail. A line that a worker has begun and not
    ended yet is left to the next call.
    """
    run_dir = _logs_of(path)
    log = _Log(run_dir, rank)
    is_over = not lock.is_held(run_dir.lock)
    log.look()
    if before is not None:
        stop = min(max(before, log.first), log.size)
        begin = max(log.first, stop - max_bytes)
    elif start is None or start < 0:
        stop = log.size
        begin = max(log.first, stop + (start or -max_bytes))
        begin = max(begin, stop - max_bytes)
    else:
        begin = min(max(start, log.first), log.size)
        stop = min(log.size if end is None else max(end, begin), begin + max_bytes)
    content = log.read(begin, stop)
    stop = begin + len(content)
    if (before is not None or start is None or start < 0) and begin > log.first:
        skipped = content.find(b"\n") + 1
        if log.read(begin - 1, begin) != b"\n" and skipped:
            begin, content = begin + skipped, content[skipped:]
    if not (stop == log.size and is_over) and before is None:
        whole = content.rfind(b"\n") + 1
        if whole or len(content) < max_bytes:
            content = content[:whole]
    return LogPart(begin, begin + len(content), log.size, content.decode("utf-8", "replace"), begin > log.first)


def merged(
    path: str | Path,
    ranks: Collection[int] | None = None,
    *,
    since: float | None = None,
    grep: re.Pattern[str] | None = None,
    filesystem: Any = None,
) -> Iterator[LogLine]:
    """The lines of all ranks, or of some, in the order of time; each rank's own lines stay in their order.

    `since` is in seconds since the epoch. Runs of earlier versions do not say when a line was written: their ranks come
    one after the other.
    """
    run_dir = _logs_of(path)
    logs = [_Log(run_dir, rank) for rank in _chosen(run_dir, ranks)]
    lines = heapq.merge(*(log.lines(since) for log in logs), key=_moment)
    return (line for line in lines if grep is None or grep.search(line.text))


def merged_part(
    path: str | Path,
    ranks: Collection[int] | None = None,
    *,
    before: Mapping[int, int] | None = None,
    max_bytes: int = 256 * 1024,
    filesystem: Any = None,
) -> MergedPart:
    """The last lines of several ranks, or those before the `starts` of an earlier part; about `max_bytes` of them.

    It begins at one moment for all ranks: what a rank printed before it comes with the part before this one.
    """
    run_dir = _logs_of(path)
    chosen = _chosen(run_dir, ranks if before is None else before.keys(), missing_is_fine=before is not None)
    share = max(max_bytes // max(len(chosen), 1), 4096)
    parts = {rank: read_log(path, rank, before=(before or {}).get(rank), max_bytes=share) for rank in chosen}
    found = {rank: list(_Log(run_dir, rank, part.start).lines(end=part.end)) for rank, part in parts.items()}
    begins = max((_moment(found[rank][0]) for rank, part in parts.items() if part.older and found[rank]), default=0.0)
    kept = {rank: [line for line in lines if _moment(line) >= begins] for rank, lines in found.items()}
    return MergedPart(
        list(heapq.merge(*kept.values(), key=_moment)),
        {rank: lines[0].start if lines else parts[rank].end for rank, lines in kept.items()},
        {rank: part.end for rank, part in parts.items()},
        any(part.older for part in parts.values()) or any(len(kept[rank]) < len(found[rank]) for rank in kept),
    )


def follow(
    path: str | Path,
    ranks: Collection[int] | None = None,
    *,
    grep: re.Pattern[str] | None = None,
    since: float | None = None,
    start: Mapping[int, int] | None = None,
    last: int | None = None,
) -> Iterator[LogLine]:
    """The same, and then what is written from now on, until the run ends.

    `start` says where to begin, by rank: where a part of that log ended. Other ranks begin at their beginning. `last`
    limits what is there already to so many lines.
    """
    run_dir = _logs_of(path)
    logs: dict[int, _Log] = {}
    while True:
        is_over = not lock.is_held(run_dir.lock)  # before the logs are read: nothing is written afterwards
        for rank in _chosen(run_dir, ranks, missing_is_fine=True):
            if rank not in logs:
                logs[rank] = _Log(run_dir, rank, (start or {}).get(rank, 0))
        new = heapq.merge(*(log.lines(since, is_over=is_over) for log in logs.values()), key=_moment)
        wanted = (line for line in new if grep is None or grep.search(line.text))
        yield from wanted if last is None else deque(wanted, maxlen=last)
        last = None
        if is_over:
            return
        time.sleep(FOLLOW_EVERY_S)


def _moment(line: LogLine) -> float:
    return line.time if line.time is not None else 0.0


def _logs_of(path: str | Path) -> RunDir:
    """The local directory of a run, or of its twin."""
    place = resolve_storage(path)
    if isinstance(place, str):
        label, twin = without_credentials(place), twin_here(place)
        if twin is None:
            raise LogsNotHereError(f"{label}: logs are not copied there; read them on the machine of the driver.")
        place = twin
    run_dir = RunDir(place)
    if not run_dir.journal.is_file():
        if any(place.glob(SEARCH_JOURNALS)):
            raise RestoreError(f"{place} is a search: name the directory of one of its trials.")
        raise no_journal(run_dir)
    return run_dir


def _ranks(run_dir: RunDir) -> list[int]:
    try:
        names = os.listdir(run_dir.logs_dir)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error(error, run_dir.logs_dir, "listing the logs") from error
    return sorted(int(match[1]) for name in names if (match := _LOG.fullmatch(name)))


def _chosen(run_dir: RunDir, ranks: Collection[int] | None, *, missing_is_fine: bool = False) -> list[int]:
    there_are = _ranks(run_dir)
    if ranks is None:
        return there_are
    missing = sorted(set(ranks) - set(there_are))
    if missing and not missing_is_fine:
        raise _no_log(run_dir, missing[0])
    return [rank for rank in there_are if rank in set(ranks)]


def _no_log(run_dir: RunDir, rank: int) -> RestoreError:
    there_are = _ranks(run_dir)
    known = f"it has those of ranks {', '.join(map(str, there_are))}" if there_are else "it has none at all"
    return RestoreError(f"{run_dir.root} has no log of rank {rank}; {known}.")


class _Log:
    """The log of one rank, with its older file before it."""

    def __init__(self, run_dir: RunDir, rank: int, position: int = 0) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._path = run_dir.log(rank)
        self._position = position
        """What was given out so far, by `lines`."""
        self.first = 0
        """Where that begins which is still there."""
        self.size = 0
        self._base = 0
        """Where the newer file begins."""
        self._newer = 0
        """How long that is."""
        self._older_file = 0
        self._changed = 0.0
        """When it was last written to."""
        self._times = Times()
        self._older_times = Times()

    def look(self) -> None:
        """How much there is now. The driver may be moving the content of the log meanwhile: then look again."""
        notes = times_path(self._path)
        for _ in range(_MOST_LOOKS):
            before = _version(notes)
            self._look_once()
            if _version(notes) == before:
                return

    def _look_once(self) -> None:
        self._times = read_times(times_path(self._path)) or Times()
        self._older_times = read_times(times_path(older_log(self._path))) or Times()
        try:
            newer = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            raise _no_log(self._run_dir, self._rank) from None
        except OSError as error:
            raise storage_error(error, self._path, "reading the log") from error
        try:
            found = os.stat(older_log(self._path))
            older, self._older_file = found.st_size, found.st_ino
        except OSError:
            older, self._older_file = 0, 0
        self._base = max(self._times.base, older)
        if self._times.is_moving:
            was = self._times.sizes[-1] if self._times.sizes else 0
            if newer.st_size >= was:  # not truncated yet: the older file may be a copy of this one
                self._base, older = self._times.base, 0
            else:
                self._base, self._older_times, self._times = self._times.base + older, self._times, Times()
        self.first, self.size = self._base - older, self._base + newer.st_size
        self._newer, self._changed = newer.st_size, newer.st_mtime

    def read(self, start: int, end: int) -> bytes:
        """The bytes from one position to another, as far as they are there."""
        pieces = []
        if start < self._base:
            length = min(end, self._base) - start
            pieces.append(_read(older_log(self._path), start - self.first, length, file=self._older_file))
        if end > self._base:
            begin = max(start, self._base)
            pieces.append(_read(self._path, begin - self._base, end - begin, least=self._newer))
        return b"".join(pieces)

    def lines(self, since: float | None = None, *, is_over: bool = True, end: int | None = None) -> Iterator[LogLine]:
        """The lines behind what was given out so far. Without `is_over` an unfinished one is left for later."""
        self.look()
        stop = self.size if end is None else min(end, self.size)
        self._position = max(self._position, self.first)
        if since is not None:
            self._position = max(self._position, self._position_at(since))
        last, rest, offset = 0.0, b"", self._position
        while chunk := self.read(offset, min(offset + LONGEST_LINE, stop)):
            offset += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                last = max(last, self._time_at(self._position + len(line) + 1))
                yield self._line(line, last, len(line) + 1)
            if len(rest) >= LONGEST_LINE:
                last = max(last, self._time_at(self._position + len(rest)))
                yield self._line(rest, last, len(rest))
                rest = b""
        if rest and is_over:
            last = max(last, self._time_at(self._position + len(rest)))
            yield self._line(rest, last, len(rest))

    def _line(self, line: bytes, moment: float, length: int) -> LogLine:
        start, self._position = self._position, self._position + length
        return LogLine(self._rank, moment or None, line.rstrip(b"\r").decode("utf-8", "replace"), start)

    def _time_at(self, position: int) -> float:
        """When what ends there was written, as far as it is known; 0.0 if not."""
        if position <= self._base:
            return self._older_times.at(position - self.first) or 0.0
        found = self._times.at(position - self._base)
        if found is None and self._times.sizes:  # after the driver's last look
            return self._changed
        return found or 0.0

    def _position_at(self, since: float) -> int:
        times, older = self._times, self._older_times
        if times.walls and since > times.walls[0]:
            return self._base + times.offset_at(since)
        if older.walls:
            return self.first + older.offset_at(since)
        if not times.walls and since > self._changed:
            return self.size
        return self.first


def _version(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_ino, found.st_size


def _read(path: Path, offset: int, length: int, *, least: int = 0, file: int = 0) -> bytes:
    """Nothing if it is another file, or shorter than it was: then other bytes are there now."""
    try:
        with open(_open_regular(path), "rb") as opened:
            opened.seek(offset)
            content = opened.read(length)
            found = os.fstat(opened.fileno())
            return content if found.st_size >= least and file in (0, found.st_ino) else b""
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise storage_error(error, path, "reading the log") from error


def _open_regular(path: Path) -> int:
    """A log is a file. A link in somebody's directory could lead to any file of the reader's; a pipe has no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))
    return descriptor
