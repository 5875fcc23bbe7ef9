"""Follows the log files that workers write, so that their output can be shown while they run."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from paceline.air.constants import OLDER_LOG_SUFFIX

CHUNK_BYTES = 64 * 1024
"""A line longer than this comes in pieces: no worker can make the driver hold much."""


def older_log(path: Path) -> Path:
    """Where the content of a log goes that has become too long."""
    return path.with_name(path.name + OLDER_LOG_SUFFIX)


class LogFollower:
    """Reads what was added to each rank's log file, in complete lines.

    Each item is (rank, text); the text holds one or more complete lines. Only a line longer
    than `CHUNK_BYTES`, and a last line without an end, come as text that does not end in
    a newline. Bytes that are not UTF-8 are shown as replacement characters.
    """

    def __init__(self, paths: Mapping[int, Path], *, from_end: bool = False) -> None:
        self._files = {rank: _FollowedFile(path, from_end) for rank, path in paths.items()}
        self._paused: set[int] = set()

    def read(self) -> Iterator[tuple[int, str]]:
        """What is new: at most one chunk per rank, so that a flood of output delays nothing else."""
        for rank, file in self._files.items():
            if rank not in self._paused and (text := file.read()):
                yield rank, text

    def drain(self) -> Iterator[tuple[int, str]]:
        """All that is left, including a last line without an end. For when the workers have ended."""
        for rank, file in self._files.items():
            while file.has_more():
                if text := file.read():
                    yield rank, text
            if text := file.rest():
                yield rank, text

    def pause(self, ranks: Iterable[int]) -> None:
        """Leave these logs alone: their content is being moved to the older file."""
        self._paused.update(ranks)

    def resume(self, moved: Mapping[int, int]) -> None:
        """Read all logs again. `moved`: of those that are empty now, how much is in the older file."""
        self._paused.clear()
        for rank, size in moved.items():
            self._files[rank].moved(size)

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

    def rest(self) -> str:
        """What stands after the last newline."""
        partial, self._partial = self._partial, b""
        return self._decoder.decode(partial, final=True)

    def moved(self, size: int) -> None:
        """The first `size` bytes of the log are in the older file, and the log is empty."""
        if self._older is not None:
            self._skipped += self._older_end - self._position
            self._position = 0
            self._leave_older()
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
