"""Files that a logger appends to: opened once, buffered, cut back by number of lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from paceline.storage.files import PRIVATE_FILE_MODE, storage_error

_BUFFER_BYTES = 256 * 1024


class AppendFile:
    """Grows at its end. What the system refuses is raised as a StorageError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = _open(path)
        except OSError as error:
            raise storage_error(error, path, "opening the file") from error

    def append(self, content: bytes) -> None:
        try:
            self._file.write(content)
        except OSError as error:
            raise storage_error(error, self.path, "writing metrics", needed=len(content)) from error

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            raise storage_error(error, self.path, "writing metrics") from error

    def close(self) -> None:
        """The descriptor is closed even if the last bytes can't be written."""
        try:
            self._file.close()
        except OSError as error:
            raise storage_error(error, self.path, "writing metrics") from error


class LineFile(AppendFile):
    """One record per line. A half-written line that a killed driver left at the end is cut off."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._replacement = path.with_name(f".{path.name}.tmp")
        self._replacement.unlink(missing_ok=True)  # a driver killed in `widen` leaves one
        self._cut_torn_line()

    def truncate(self, keep: int) -> int:
        """Keep the first `keep` lines; returns how many lines are left."""
        self.flush()
        lines, end = self._end_of_line(keep)
        os.truncate(self.path, end)
        return lines

    def first_line(self) -> bytes:
        """The first line without its end; empty if there is none."""
        self.flush()
        with self.path.open("rb") as reader:
            return reader.readline().rstrip(b"\n")

    def widen(self, first_line: bytes, suffix: bytes) -> None:
        """Replace the first line and add `suffix` to all others: at once, or not at all."""
        self.flush()
        try:
            with self.path.open("rb") as reader, _open(self._replacement) as writer:
                reader.readline()
                writer.write(first_line + b"\n")
                writer.writelines(line.rstrip(b"\n") + suffix + b"\n" for line in reader)
            os.replace(self._replacement, self.path)
            self._file.close()
            self._file = _open(self.path)
        except OSError as error:
            self._replacement.unlink(missing_ok=True)
            raise storage_error(error, self.path, "adding columns") from error

    def _cut_torn_line(self) -> None:
        with self.path.open("rb") as reader:
            size = end = reader.seek(0, os.SEEK_END)
            while end > 0:
                start = max(0, end - _BUFFER_BYTES)
                reader.seek(start)
                end = start + reader.read(end - start).rfind(b"\n") + 1
                if end > start:
                    break
        if end < size:
            os.truncate(self.path, end)

    def _end_of_line(self, count: int) -> tuple[int, int]:
        """How many of the first `count` lines there are, and where the last of them ends."""
        lines, end = 0, 0
        with self.path.open("rb") as reader:
            while lines < count and (chunk := reader.read(_BUFFER_BYTES)):
                in_chunk = chunk.count(b"\n")
                if lines + in_chunk < count:
                    lines += in_chunk
                    end += len(chunk)
                    continue
                position = 0
                for _ in range(count - lines):
                    position = chunk.index(b"\n", position) + 1
                return count, end + position
        return lines, end


def _open(path: Path) -> BinaryIO:
    """Open for appending. The directory is never made anew: if it is gone, its file system is."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    return os.fdopen(descriptor, "ab", buffering=_BUFFER_BYTES)
