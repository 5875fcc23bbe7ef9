"""How a run or a search is shown: as lines in a pipe or a file, or as a live picture in a terminal or a notebook.

`Display` itself is silent. `PlainDisplay` writes lines; `live_display.LiveDisplay` keeps a picture in a terminal,
`notebook_display.NotebookDisplay` in a cell. What they show is said by `run/progress.py` and `tune/progress/`. Writing
is never fatal, and nothing harmful passes.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

from paceline.air.cells import in_notebook
from paceline.air.words import printable as printable

if TYPE_CHECKING:
    from paceline.air.html import Markup

PLAIN_INTERVAL_S = 5.0
MOST_HELD = 1_000
Line = tuple[str, str]
"""A line and its style."""


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


def last_overwrite(text: str) -> str:
    """What a terminal would show of lines that overwrite themselves, as progress bars do."""
    if "\r" not in text:
        return text
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def clipped(text: str, width: int) -> str:
    """The text in at most so many columns of a terminal."""
    if cell_width(text) <= width:
        return text
    if text.isascii():
        return text[: max(0, width - 1)] + "…"
    from rich.cells import set_cell_size

    return set_cell_size(text, max(0, width - 1)).rstrip() + "…"


def clipped_inside(text: str, width: int) -> str:
    """The same with what is cut in the middle: the ends of names tell them apart."""
    if cell_width(text) <= width or width < 5 or not text.isascii():
        return clipped(text, width)
    end = width // 2
    return f"{text[: width - 1 - end]}…{text[-end:]}"


def padded(text: str, width: int) -> str:
    return text + " " * (width - cell_width(text))


def wrapped(facts: list[str], width: int, most: int) -> list[str]:
    """Facts joined by dots in at most so many lines, broken between facts where a line is full."""
    lines = [facts[0]]
    for fact in facts[1:]:
        longer = f"{lines[-1]} · {fact}"
        if cell_width(longer) <= width or len(lines) == most:
            lines[-1] = longer
        else:
            lines.append(fact)
    return [clipped(line, width) for line in lines]


def cell_width(text: str) -> int:
    """How many columns of a terminal the text takes: some characters take two, some none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


class Picture(Protocol):
    """What is shown of a run or a search while it is at work."""

    def line(self) -> str:
        """The state in one line."""

    def frame(self, width: int, height: int) -> list[Line]:
        """The state as it fits a terminal of this size."""

    def html(self) -> Markup:
        """The state as a notebook shows it."""


class Display:
    """Shows nothing: what `verbose=0` gets."""

    speaks = False
    """Whether anything is shown at all."""
    is_terminal = False
    """Whether somebody may be looking on."""
    draws_curves = False
    """Whether pictures shall remember the rows that they have seen."""

    @property
    def is_due(self) -> bool:
        """The next `refresh` writes a line."""
        return False

    def start(self, picture: Picture, first_after_s: float = 0.0) -> None:
        """Show this from now on; a line of it after so many seconds at the earliest."""

    def say(self, text: str, style: str = "") -> None:
        """A line, or several, that stay."""

    def detail(self, text: str) -> None:
        """A line that a picture makes superfluous."""

    def output(self, prefix: str, text: str) -> None:
        """What a worker wrote, as `LogFollower` delivers it."""

    def refresh(self) -> None:
        """There is news: show the state, if it is time. Called for every row, so it must cost next to nothing."""

    def redraw(self) -> None:
        """Time has passed: a picture shows it."""

    def show_next(self) -> None:
        """Show the next news at once."""

    def suspend(self) -> None:
        """Somebody else uses the terminal for a while: a picture goes. Nothing else is called before `resume`."""

    def resume(self) -> None:
        """The terminal is free again."""

    def stop(self) -> None:
        """What follows are closing words; a picture goes."""

    def close(self) -> None:
        """Leave the terminal as it was. Called last, whatever happened; may be called twice."""


class HeldDisplay(Display):
    """Stands for a display that is suspended, and remembers what it would have said: the newest lines of it."""

    def __init__(self, suspended: Display) -> None:
        self.suspended = suspended
        self.speaks, self.is_terminal, self.draws_curves = True, suspended.is_terminal, suspended.draws_curves
        self._held: deque[tuple[Callable[..., None], tuple[str, ...]]] = deque(maxlen=MOST_HELD)
        suspended.suspend()

    def say(self, text: str, style: str = "") -> None:
        self._held.append((self.suspended.say, (text, style)))

    def detail(self, text: str) -> None:
        self._held.append((self.suspended.detail, (text,)))

    def output(self, prefix: str, text: str) -> None:
        self._held.append((self.suspended.output, (prefix, text)))

    def released(self) -> Display:
        """The display itself, which has said all of it."""
        self.suspended.resume()
        for call, arguments in self._held:
            call(*arguments)
        return self.suspended


class PlainDisplay(Display):
    """Lines: what is said, and the state every few seconds. `detailed` False leaves out state, details and output."""

    speaks = True

    def __init__(self, writer: GuardedWriter, detailed: bool, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self._writer = writer
        self._detailed = detailed
        self._interval_s = interval_s
        self._prefixer = LinePrefixer()
        self._picture: Picture | None = None
        self._next_at = float("inf")
        self.is_terminal = writer.isatty()

    def start(self, picture: Picture, first_after_s: float = 0.0) -> None:
        self._picture = picture
        if self._detailed:
            self._next_at = time.monotonic() + min(first_after_s, self._interval_s)

    def say(self, text: str, style: str = "") -> None:
        self._writer.write(f"{self._prefixer.end_line()}{printable(text)}\n")

    def detail(self, text: str) -> None:
        if self._detailed:
            self.say(text)

    def output(self, prefix: str, text: str) -> None:
        if self._detailed:
            self._writer.write(self._prefixer.prefixed(prefix, last_overwrite(text)))

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._next_at and self._picture is not None

    def refresh(self) -> None:
        if self._picture is not None and time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + self._interval_s
            self.say(self._picture.line())

    def end_line(self) -> None:
        """Somebody else writes next."""
        self._writer.write(self._prefixer.end_line())

    def suspend(self) -> None:
        self.end_line()

    def show_next(self) -> None:
        if self._detailed:
            self._next_at = 0.0

    def close(self) -> None:
        self.end_line()


_page_is_mentioned = False


def mention_page(display: Display, results: str) -> None:
    """Say how to look at the runs below a path in a browser: once per process, and only to a person at a terminal."""
    global _page_is_mentioned
    if display.is_terminal and not _page_is_mentioned:
        _page_is_mentioned = True
        display.say(f"To watch runs in a browser: paceline dash {shlex.quote(results)}")


def make_display(verbose: int, stream: TextIO | None = None) -> Display:
    """The display for `RunConfig(verbose=...)`: 0 silent, 1 beginning, errors and end, 2 and 3 everything."""
    if verbose <= 0:
        return Display()
    if stream is None and in_notebook():
        from paceline.run.notebook_display import NotebookDisplay

        return NotebookDisplay()
    writer = GuardedWriter(stream if stream is not None else sys.stdout)
    if verbose == 1 or not writer.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return PlainDisplay(writer, detailed=verbose > 1)
    from paceline.run.live_display import LiveDisplay

    return LiveDisplay(writer)
