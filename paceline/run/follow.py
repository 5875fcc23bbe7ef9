"""Follows the log files that workers write, so that their output can be shown while they run."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

CHUNK_BYTES = 64 * 1024
"""A line longer than this comes in pieces: no worker can make the driver hold much."""


class LogFollower:
    """Reads what was added to each rank's log file, in complete lines.

    Each item is (rank, text); the text holds one or more complete lines. Only a line longer
    than `CHUNK_BYTES`, and a last line without an end, come as text that does not end in
    a newline. Bytes that are not UTF-8 are shown as replacement characters.
    """

    def __init__(self, paths: Mapping[int, Path], *, from_end: bool = False) -> None:
        self._files = {rank: _FollowedFile(path, from_end) for rank, path in paths.items()}

    def read(self) -> Iterator[tuple[int, str]]:
        """What is new: at most one chunk per rank, so that a flood of output delays nothing else."""
        for rank, file in self._files.items():
            if text := file.read():
                yield rank, text

    def drain(self) -> Iterator[tuple[int, str]]:
        """All that is left, including a last line without an end. For when the workers have ended."""
        for rank, file in self._files.items():
            while file.has_more():
                if text := file.read():
                    yield rank, text
            if text := file.rest():
                yield rank, text

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
        return self._decoder.decode(ready)

    def rest(self) -> str:
        """What stands after the last newline."""
        partial, self._partial = self._partial, b""
        return self._decoder.decode(partial, final=True)

    def has_more(self) -> bool:
        descriptor = self._open()
        return descriptor is not None and os.fstat(descriptor).st_size > self._position

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read_chunk(self) -> bytes:
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
