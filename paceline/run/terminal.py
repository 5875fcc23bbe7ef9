"""Writing to the user's terminal or pipe: never fatal, one line per rank at a time, nothing harmful."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[PX^_][^\x1b\n]*(?:\x1b\\)?|.)?"
)
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class GuardedWriter:
    """The one place that writes to the user's stream.

    Training must outlive its audience: once the stream is closed or its reader has gone
    away (``| head -1``), this writer goes quiet for good. It has what `rich` asks of a file.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.encoding: str = getattr(stream, "encoding", None) or "utf-8"
        # The process's own standard output is written through its descriptor: what failed to
        # go out would otherwise stay in the stream's buffer and fail again at exit.
        self._direct = stream is not None and stream is sys.__stdout__
        self.quiet = stream is None

    def write(self, text: str) -> int:
        if not self.quiet and self._stream is not None:
            try:
                self._write(self._stream, text)
            except BlockingIOError:
                pass  # the reader is slow and does not want to be waited for
            except (OSError, ValueError):
                self.quiet = True
        return len(text)

    def _write(self, stream: TextIO, text: str) -> None:
        encoded = text.encode(self.encoding, "replace")
        if not self._direct:
            stream.write(encoded.decode(self.encoding))
            stream.flush()
            return
        stream.flush()
        descriptor = stream.fileno()
        while encoded:
            encoded = encoded[os.write(descriptor, encoded) :]

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except (OSError, ValueError):
            return False

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("there is no stream")
        return self._stream.fileno()


class LinePrefixer:
    """Puts who wrote it before each line of a worker's output.

    A line that comes in pieces gets its prefix once; another worker's output in between
    starts on a line of its own.
    """

    def __init__(self) -> None:
        self._open_line: str | None = None
        """The prefix of a line that has no end yet."""

    def prefixed(self, prefix: str, text: str) -> str:
        if self._open_line is None:
            start = prefix
        else:
            start = "" if self._open_line == prefix else f"\n{prefix}"
        ended = text.endswith("\n")
        self._open_line = None if ended else prefix
        body = text[:-1] if ended else text
        return start + body.replace("\n", f"\n{prefix}") + ("\n" if ended else "")

    def end_line(self) -> str:
        """What must be written before a line that is not a worker's."""
        was_open, self._open_line = self._open_line is not None, None
        return "\n" if was_open else ""


class RankPrefixer(LinePrefixer):
    """The prefix is ``(rank k)``."""

    def lines(self, rank: int, text: str) -> str:
        return self.prefixed(f"(rank {rank}) ", text)


def last_overwrite(text: str) -> str:
    """What a terminal would show of lines that overwrite themselves, as progress bars do."""
    if "\r" not in text:
        return text
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def printable(text: str) -> str:
    """The text without escape sequences and control characters: it can't move the cursor or retitle a window."""
    return _CONTROL_CHARACTER.sub("", _ESCAPE_SEQUENCE.sub("", text))
