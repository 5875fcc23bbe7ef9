"""RunConfig(log_to_file=...): copies of what rank 0 prints, beside the logs that are always there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO


class _Tee:
    """Writes to a stream and, until that is closed, to a file; all else is asked of the stream.

    A handler of `logging` that was made in the block keeps hold of this object.
    """

    def __init__(self, stream: TextIO, file: TextIO) -> None:
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


@contextlib.contextmanager
def copied_output(directory: Path, names: tuple[str, str] | None) -> Iterator[None]:
    """Copy what Python code prints in the block to two files of the directory, or to one of two equal names.

    Code outside of Python writes past it, to the log of the worker only. A retry appends.
    """
    if names is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        # Line by line, so that the files tell how far a trial is, and so that a killed one leaves what it printed.
        files = {
            name: stack.enter_context((directory / name).open("a", encoding="utf-8", errors="replace", buffering=1))
            for name in dict.fromkeys(names)
        }
        before = sys.stdout, sys.stderr
        stack.callback(_set_streams, *before)
        _set_streams(_Tee(before[0], files[names[0]]), _Tee(before[1], files[names[1]]))
        yield


def _set_streams(stdout: Any, stderr: Any) -> None:
    sys.stdout, sys.stderr = stdout, stderr
