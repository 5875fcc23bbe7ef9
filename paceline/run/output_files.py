"""RunConfig(log_to_file=...): copies of what rank 0 prints, beside the logs that are always there."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO


class _Tee:
    """Writes to a stream and, until that is closed, to a file; all else is asked of the stream.

    A handler of `logging` that was made in the block keeps hold of this object.
    """

    def __init__(self, stream: TextIO, file: io.TextIOBase) -> None:
        self._stream = stream
        self._file = file

    def write(self, text: str) -> int:
        if not self._file.closed:
            self._file.write(text)
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class SentText(io.TextIOBase):
    """A text file that hands on what is written to it, in whole lines: for a file on another machine."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._rest = ""

    def write(self, text: str) -> int:
        lines, line_end, self._rest = (self._rest + text).rpartition("\n")
        if line_end:
            self._send(_encodable(lines + line_end))
        return len(text)

    def close(self) -> None:
        if self._rest and not self.closed:
            self._send(_encodable(self._rest))
        super().close()


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()


def open_text(path: Path) -> io.TextIOBase:
    """Line by line, so that the file tells how far a trial is, and so that a killed one leaves what it printed."""
    return path.open("a", encoding="utf-8", errors="replace", buffering=1)


@contextlib.contextmanager
def copied_output(open_copy: Callable[[str], io.TextIOBase], names: tuple[str, str] | None) -> Iterator[None]:
    """Copy what Python code prints in the block to two files, or to one of two equal names.

    Code outside of Python writes past it, to the log of the worker only. A retry appends.
    """
    if names is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open_copy(name)) for name in dict.fromkeys(names)}
        before = sys.stdout, sys.stderr
        stack.callback(_set_streams, *before)
        _set_streams(_Tee(before[0], files[names[0]]), _Tee(before[1], files[names[1]]))
        yield


def _set_streams(stdout: Any, stderr: Any) -> None:
    sys.stdout, sys.stderr = stdout, stderr
