"""What a worker's fault handler writes: its stacks on demand, its last words when it crashes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from paceline.engine.frames import close_all

MAX_TEXT = 64 * 1024
SETTLE_S = 0.02


class CrashFile:
    """The driver's descriptor of that file; what was read once is not shown again."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._read = 0

    @property
    def unread(self) -> int:
        return os.fstat(self._fd).st_size - self._read

    def read(self) -> str:
        """The last part of what is new."""
        begin = self._read + max(0, self.unread - MAX_TEXT)
        data = os.pread(self._fd, MAX_TEXT, begin)
        self._read = begin + len(data)
        return data.decode(errors="replace").strip()

    def close(self) -> None:
        close_all([self._fd])


def wait_until_written(files: Sequence[CrashFile], timeout: float) -> None:
    """Stacks come in many small pieces: they are complete once all have begun and none grows."""
    deadline = time.monotonic() + timeout
    sizes = [0] * len(files)
    while time.monotonic() < deadline:
        time.sleep(SETTLE_S)
        now = [file.unread for file in files]
        if now == sizes and all(now):
            return
        sizes = now


def tail_of(path: str, size: int = 4096) -> str:
    """The end of a log; empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def append_to_log(path: str, text: str) -> None:
    """Best effort: the error carries the text as well."""
    try:
        with open(path, "a") as file:
            file.write(text + "\n")
    except OSError:
        return
