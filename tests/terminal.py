"""A program in a real terminal, and what a person would see there: a terminal emulator draws what it writes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pexpect
import pyte

_ROOT = str(Path(__file__).parents[1])
_IN_THE_WAY = ("NO_COLOR", "COLUMNS", "LINES", "PYTHONUNBUFFERED")


class Terminal:
    """A Python program in a terminal of a certain size. Use it in a `with` block: nothing outlives that."""

    def __init__(self, command: Sequence[str], *, columns: int = 80, rows: int = 24, **variables: str) -> None:
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self._screen)
        inherited = {name: value for name, value in os.environ.items() if name not in _IN_THE_WAY}
        self._child = pexpect.spawn(
            sys.executable,
            list(command),
            env={**inherited, "PYTHONPATH": _ROOT, "TERM": "xterm-256color", **variables},
            dimensions=(rows, columns),
            timeout=60,
        )
        self._child.delaybeforesend = None

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.close(force=True)

    @property
    def screen(self) -> list[str]:
        """The lines on the screen now."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def lines(self) -> list[str]:
        """Everything that can be seen by scrolling back, and the screen."""
        above = [
            "".join(line[column].data for column in range(self._screen.columns)) for line in self._screen.history.top
        ]
        return "\n".join([*(line.rstrip() for line in above), *self.screen]).rstrip("\n").split("\n")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str, timeout: float = 60.0) -> None:
        """Until the text is on the screen."""
        deadline = time.monotonic() + timeout
        while not any(text in line for line in self.lines):
            assert self._read(), f"the program ended without {text!r}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {text!r} on the screen:\n{self.text}"

    def press(self, keys: str) -> None:
        self._child.send(keys)

    def interrupt(self) -> None:
        """Ctrl-C, which the terminal echoes."""
        self._child.sendintr()

    def hang_up(self) -> int:
        """Close the terminal's window; the exit status of the program, once it has ended."""
        self._child.ptyproc.fileobj.close()
        _, status = os.waitpid(self._child.pid, 0)
        self._child.ptyproc.closed = self._child.ptyproc.terminated = True
        return os.waitstatus_to_exitcode(status)

    def finish(self, timeout: float = 60.0) -> int:
        """Until the program has ended; its exit status as a shell gives it."""
        deadline = time.monotonic() + timeout
        while self._read():
            assert time.monotonic() < deadline, f"the program does not end:\n{self.text}"
        self._child.wait()
        status: Any = self._child.exitstatus
        return int(128 + self._child.signalstatus if status is None else status)

    def _read(self) -> bool:
        try:
            self._stream.feed(self._child.read_nonblocking(65536, 0.2))
        except pexpect.TIMEOUT:
            pass
        except pexpect.EOF:
            return False
        return True
