"""Where the user of a debugger sits: at the terminal of the driver, or at a notebook.

A process has one terminal, and one rank at a time has it. Lines are read from it without waiting, so that the run's
loop continues. A notebook's kernel cannot do that: there the loop waits for the line.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import Protocol, TextIO

from paceline.air.cells import in_notebook
from paceline.air.words import printable
from paceline.run.display import GuardedWriter

NO_TERMINAL = "the driver has no terminal. Start it in one to debug the run there."
INTERRUPTED = "--KeyboardInterrupt--"
IN_BACKGROUND = "the driver is in the background of its terminal. Start it in the foreground to debug the run there."


class Seat(Protocol):
    """What a debugger needs of whoever uses it."""

    def write(self, text: str) -> None: ...

    def line(self, prompt: str) -> str | None:
        """The next line with its newline; empty at the end of the input; None if there is none yet. `prompt` was
        written or is written here. Raises OSError when the user is gone."""

    def remark(self, text: str) -> None:
        """Say something while a line is being typed, which begins anew."""


class TerminalSeat:
    """The terminal that the driver was started in."""

    def __init__(self, descriptor: int, output: TextIO) -> None:
        self._descriptor = descriptor
        self._writer = GuardedWriter(output)
        self._typed = b""
        self._prompt = ""

    def write(self, text: str) -> None:
        self._writer.write(printable(text))

    def line(self, prompt: str) -> str | None:
        if prompt != self._prompt:
            self._prompt = prompt
            self.write(prompt)
        if not select.select([self._descriptor], [], [], 0)[0] or not _in_foreground(self._descriptor):
            return None
        read = os.read(self._descriptor, 4096)  # The terminal hands over whole lines; b"" is Ctrl-D.
        self._typed += read
        if read and not read.endswith(b"\n"):
            return None
        line, self._typed, self._prompt = self._typed.decode(errors="replace"), b"", ""
        return line

    def remark(self, text: str) -> None:
        self._typed, self._prompt = b"", ""
        self.write(f"\n{text}\n")


class NotebookSeat:
    """The cell that runs: the kernel asks the notebook for each line."""

    def write(self, text: str) -> None:
        print(printable(text), end="", flush=True)

    def line(self, prompt: str) -> str | None:
        try:
            return f"{input(printable(prompt))}\n"
        except EOFError:
            return ""
        except KeyboardInterrupt:
            self.remark(INTERRUPTED)
            return None
        except Exception as error:  # The notebook takes no input: it is executed by a program.
            raise OSError("the notebook takes no input") from error

    def remark(self, text: str) -> None:
        self.write(f"\n{text}\n")


def find_seat() -> Seat | str:
    """Where the user sits; in words, why there is nobody."""
    if in_notebook():
        return NotebookSeat() if _kernel_takes_input() else "this notebook runs non-interactively, so nobody can type."
    try:
        descriptor = sys.stdin.fileno()
        is_terminal = os.isatty(descriptor)
    except (AttributeError, OSError, ValueError):  # closed, or replaced by something without a descriptor
        return NO_TERMINAL
    output = next((stream for stream in (sys.stdout, sys.stderr) if _is_terminal(stream)), None)
    if not is_terminal or output is None:
        return NO_TERMINAL
    return TerminalSeat(descriptor, output) if _in_foreground(descriptor) else IN_BACKGROUND


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


def _in_foreground(descriptor: int) -> bool:
    """A process that reads in the background is stopped."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # It is not the terminal of this session: nothing is stopped.
        return True


def _kernel_takes_input() -> bool:
    from paceline.air.cells import shell

    kernel = getattr(shell(), "kernel", None)
    return bool(getattr(kernel, "_allow_stdin", True))


def debug_notes(debug: str | None) -> list[str]:
    """What to tell the user about `RunConfig(debug=...)` when the run begins."""
    seat = find_seat() if debug else None
    return [f"RunConfig(debug={debug!r}) has no effect: {seat}"] if isinstance(seat, str) else []


class Desk:
    """The only seat of this process: whose turn it is, and whether a line is being typed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._user: object = None
        self.is_typing = False
        """A line is waited for: Ctrl-C is meant for the debugger."""
        self.was_interrupted = False

    def take(self, user: object) -> bool:
        """False if another run of this process has it."""
        with self._lock:
            if self._user is None:
                self._user = user
            return self._user is user

    def give_back(self, user: object) -> None:
        with self._lock:
            if self._user is user:
                self._user = None
                self.is_typing = self.was_interrupted = False

    def interrupted(self) -> bool:
        """For the handler of SIGINT: True if the debugger deals with it."""
        if not self.is_typing:
            return False
        if in_notebook():  # It waits in input().
            raise KeyboardInterrupt
        self.was_interrupted = True
        return True


desk = Desk()
