"""What a worker's fault handler writes: its stacks on demand, its last words when it crashes."""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Sequence

from paceline.air.attachment import anonymous_file
from paceline.air.constants import OLDER_LOG_SUFFIX
from paceline.engine.failures import is_own_file
from paceline.engine.frames import close_all

MAX_TEXT = 64 * 1024
SETTLE_S = 0.02
_LONG_UNCHANGED = 6
_FRAME = re.compile(r'  File "(.*)", line (?:\d+|\?\?\?) in ')
_THREAD = re.compile(r"(Current thread|Thread) 0x.*\(most recent call first\):$")


class CrashFile:
    """That file, which is made for a worker before its start; what was read once is not shown again."""

    def __init__(self) -> None:
        self._fd = anonymous_file("paceline-crash")
        fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) | os.O_APPEND)
        self._read = 0

    def fileno(self) -> int:
        return self._fd

    @property
    def unread(self) -> int:
        return os.fstat(self._fd).st_size - self._read

    @property
    def shows_current_thread(self) -> bool:
        """What is new says where the thread is that was asked."""
        data = os.pread(self._fd, MAX_TEXT, self._read + max(0, self.unread - MAX_TEXT))
        _, asked, frames = data.rpartition(b"Current thread 0x")
        return bool(asked) and frames.count(b"\n") > 1

    def read(self) -> str:
        """The last part of what is new."""
        begin = self._read + max(0, self.unread - MAX_TEXT)
        data = os.pread(self._fd, MAX_TEXT, begin)
        self._read = begin + len(data)
        return data.decode(errors="replace").strip()

    def from_here(self) -> CrashFile:
        """Another handle, which shows what is written from now on, whatever happens to this one."""
        other = CrashFile.__new__(CrashFile)
        other._fd, other._read = os.dup(self._fd), os.fstat(self._fd).st_size
        return other

    def skip_to(self, other: CrashFile) -> None:
        """What the other handle has shown is not shown again."""
        self._read = max(self._read, other._read)

    def close(self) -> None:
        close_all([self._fd])


def wait_until_written(files: Sequence[CrashFile], timeout: float) -> None:
    """Stacks come in many small pieces, and the thread that was asked may come last: they are complete once all show
    a frame of it and none grows. If a thread without Python was asked, they show none, and do not grow for longer."""
    deadline = time.monotonic() + timeout
    sizes, unchanged = [0] * len(files), 0
    while time.monotonic() < deadline:
        time.sleep(SETTLE_S)
        now = [file.unread for file in files]
        unchanged = unchanged + 1 if now == sizes and all(now) else 0
        if unchanged and (unchanged >= _LONG_UNCHANGED or all(file.shows_current_thread for file in files)):
            return
        sizes = now


def user_stacks(dump: str) -> str:
    """A dump without what says nothing about the user's code: the frames of ours that called it, other
    threads of ours, the list of extension modules. The current thread comes first, whosever it is.
    """
    head: list[str] = []
    threads: list[list[str]] = []
    for line in dump.splitlines():
        if _THREAD.match(line):
            threads.append([line])
        elif line.strip() and not line.startswith("Extension modules:"):
            (threads[-1] if threads else head).append(line)
    current = [_without_callers(thread) or thread for thread in threads if thread[0].startswith("Current")]
    others = [_without_callers(thread) for thread in threads if not thread[0].startswith("Current")]
    if not current and not any(others):
        return dump
    return "\n\n".join("\n".join(block) for block in [head, *current, *others] if block)


def _without_callers(thread: list[str]) -> list[str]:
    """The thread down to the user's outermost frame; empty if it has none."""
    last = max((number for number, line in enumerate(thread) if _is_users(line)), default=None)
    return [] if last is None else thread[: last + 1]


def _is_users(line: str) -> bool:
    frame = _FRAME.match(line)
    return frame is not None and frame[1] != threading.__file__ and not is_own_file(frame[1])


def tail_of(path: str, size: int = 4096) -> str:
    """The end of a log, which may have been rotated a moment ago; empty if there is none."""
    end = _last_bytes(path, size)
    if len(end) < size:
        end = _last_bytes(path + OLDER_LOG_SUFFIX, size - len(end)) + end
    return end.decode(errors="replace").strip()


def _last_bytes(path: str, size: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size)
    except OSError:
        return b""


def append_to_log(path: str, text: str) -> None:
    """Best effort: the error carries the text as well."""
    try:
        with open(path, "a") as file:
            file.write(text + "\n")
    except OSError:
        return
