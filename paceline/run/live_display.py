"""A live picture in a terminal, below what is said."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import threading
import time
from typing import Any, TextIO, cast

from paceline.run.display import Display, GuardedWriter, Line, Picture, cell_width, last_overwrite, printable
from paceline.run.shield import shield

DRAW_INTERVAL_S = 0.125
RESUME_AFTER_S = 0.5
"""When a picture comes back: whoever used the terminal may want it again at once."""
_LONGEST_LINE = 2000
"""Characters shown of one line of worker output; the log file has all of it."""
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_COLOURS = ("red", "green", "yellow", "cyan")
_COLOURING = re.compile("(\x1b\\[[0-9;:]*m)")


class Screen:
    """Lines that stay, and below them a picture that is replaced in place.

    The cursor stands on an empty line below the picture: what the terminal echoes there, such as ``^C``, moves no
    line of it. An interrupt waits until a drawing is complete and remembered. The cursor is never hidden: a driver that
    is killed could not bring it back.
    """

    def __init__(self, writer: GuardedWriter) -> None:
        self._writer = writer
        self._picture: list[str] = []
        """The lines of the picture that is on the screen."""
        self._drawn = ""
        """The same as it was written, with styles."""
        self._lock = threading.RLock()  # threads of the user's may print
        self._styles = dict(_CODES)
        if os.environ.get("NO_COLOR"):
            self._styles = {name: code for name, code in _CODES.items() if name not in _COLOURS}

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return shutil.get_terminal_size()

    def print(self, text: str) -> None:
        """Add lines above the picture. The text ends with a newline."""
        with shield, self._lock:
            self._writer.write(f"{self._erasure()}{text}{self._drawn}")

    def draw(self, lines: list[Line]) -> None:
        """Show this picture instead of the one before; none if there are no lines."""
        with shield, self._lock:
            drawn = "".join(f"{self.styled(text, style)}\n" for text, style in lines)
            self._writer.write(f"{self._erasure()}{drawn}")
            self._drawn, self._picture = drawn, [text for text, _ in lines]

    def styled(self, text: str, style: str) -> str:
        codes = ";".join(self._styles[word] for word in style.split() if word in self._styles)
        return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text

    def _erasure(self) -> str:
        """Removes the picture. In a terminal that has become narrower, its lines may take several rows each."""
        if not self._picture:
            return ""
        columns = max(1, self.size[0])
        rows = sum(max(1, -(-cell_width(line) // columns)) for line in self._picture)
        return f"\r\x1b[{rows}A\x1b[J"


class PrefixedOutput:
    """What workers wrote, as it may be shown in a terminal: each line with its prefix, harmless, and not endless."""

    def __init__(self) -> None:
        self._cut_lines: set[str] = set()
        """Prefixes of the workers whose output is in the middle of a line that was cut."""

    def shown(self, prefix: str, text: str) -> list[str]:
        text = self._without_rest_of_cut_line(prefix, text)
        if not text:
            return []
        lines = printable(last_overwrite(text).removesuffix("\n")).split("\n")
        return [
            line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}… (the log file has the whole line)"
            for line in lines
        ]

    def _without_rest_of_cut_line(self, prefix: str, text: str) -> str:
        """A line longer than a screen can hold comes in pieces, of which only the first is shown."""
        if prefix in self._cut_lines:
            _, newline, text = text.partition("\n")
            if newline:
                self._cut_lines.discard(prefix)
        if len(text) - text.rfind("\n") > _LONGEST_LINE:
            self._cut_lines.add(prefix)
        return text


class PrintedAbove(io.TextIOBase):
    """Stands for sys.stdout or sys.stderr while there is a picture: what the user's own code prints goes above it.

    A line appears when it is complete. All else is asked of the stream itself.
    """

    def __init__(self, screen: Screen, stream: TextIO) -> None:
        self.stream = stream
        self._screen = screen
        self._rest = ""
        self._pid = os.getpid()

    def write(self, text: str) -> int:
        if os.getpid() != self._pid:  # a forked child does not know where the picture is
            return self.stream.write(text)
        lines, newline, rest = (self._rest + text).rpartition("\n")
        self._rest = rest if len(rest) <= _LONGEST_LINE else rest.rpartition("\r")[2]
        if newline:
            self._screen.print(f"{_only_colours(last_overwrite(lines))}\n")
        return len(text)

    def finish(self) -> None:
        """What was printed without an end of the line goes on in the stream itself."""
        rest, self._rest = self._rest, ""
        if rest:
            self.stream.write(rest)

    def flush(self) -> None:
        """Complete lines are out already."""

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class LiveDisplay(Display):
    """A picture below what is said, drawn a few times a second.

    Nothing draws in the background: `refresh` and `redraw` draw when it is time.
    """

    speaks = True
    is_terminal = True

    def __init__(self, writer: GuardedWriter) -> None:
        self._screen = Screen(writer)
        self._output = PrefixedOutput()
        self._picture: Picture | None = None
        self._next_draw_at = 0.0
        self._redirected: dict[str, PrintedAbove] = {}

    def start(self, picture: Picture, first_after_s: float = 0.0) -> None:
        with shield:
            self._picture = picture
            self._draw()

    def say(self, text: str, style: str = "") -> None:
        self._screen.print("".join(f"{self._screen.styled(line, style)}\n" for line in printable(text).split("\n")))

    def output(self, prefix: str, text: str) -> None:
        if lines := self._output.shown(prefix, text):
            coloured = self._screen.styled(prefix, "cyan")
            self._screen.print("".join(f"{coloured}{line}\n" for line in lines))

    def refresh(self) -> None:
        if time.monotonic() >= self._next_draw_at:
            self._draw()
            self._next_draw_at = time.monotonic() + DRAW_INTERVAL_S

    def redraw(self) -> None:
        self.refresh()

    def suspend(self) -> None:
        with shield:
            self._screen.draw([])
            self._give_back()

    def resume(self) -> None:
        self._next_draw_at = time.monotonic() + RESUME_AFTER_S

    def stop(self) -> None:
        with shield:
            if self._picture is not None:
                self._picture = None
                self._screen.draw([])
                self._give_back()

    def close(self) -> None:
        self.stop()

    def _draw(self) -> None:
        if self._picture is not None:
            self._redirect()
            width, height = self._screen.size
            self._screen.draw(self._picture.frame(width, height - 1))

    def _redirect(self) -> None:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if _is_terminal(stream) and name not in self._redirected:
                self._redirected[name] = PrintedAbove(self._screen, stream)
                setattr(sys, name, cast("TextIO", self._redirected[name]))

    def _give_back(self) -> None:
        for name, above in self._redirected.items():
            if getattr(sys, name) is above:  # else somebody has put another stream there since
                setattr(sys, name, above.stream)
            above.finish()
        self._redirected = {}


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):  # closed
        return False


def _only_colours(text: str) -> str:
    """Text of the user's own program: it may have colours, and must not move the cursor."""
    if "\x1b" not in text:
        return printable(text)
    parts = [part if place % 2 else printable(part) for place, part in enumerate(_COLOURING.split(text))]
    return f"{''.join(parts)}\x1b[0m"
