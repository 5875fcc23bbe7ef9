"""A live picture in a terminal. Only imported when there is one, because `rich` is not cheap."""

from __future__ import annotations

import time
from typing import IO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from paceline.run.display import Display, GuardedWriter, Picture, last_overwrite, printable

DRAW_INTERVAL_S = 0.125
_LONGEST_LINE = 2000
"""Characters shown of one line of worker output; the log file has all of it."""


class VisibleCursorConsole(Console):
    """Leaves the cursor alone: a driver that is killed could not bring it back."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class PrefixedOutput:
    """What workers wrote, as it may be shown in a terminal: each line with its prefix, harmless, and not endless."""

    def __init__(self) -> None:
        self._cut_lines: set[str] = set()
        """Prefixes of the workers whose output is in the middle of a line that was cut."""

    def shown(self, prefix: str, text: str) -> Text | None:
        text = self._without_rest_of_cut_line(prefix, text)
        if not text:
            return None
        shown = Text()
        for line in printable(last_overwrite(text).removesuffix("\n")).split("\n"):
            cut = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}… (the log file has the whole line)"
            shown.append(prefix, "cyan")
            shown.append(f"{cut}\n")
        return shown

    def _without_rest_of_cut_line(self, prefix: str, text: str) -> str:
        """A line longer than a screen can hold comes in pieces, of which only the first is shown."""
        if prefix in self._cut_lines:
            _, newline, text = text.partition("\n")
            if newline:
                self._cut_lines.discard(prefix)
        if len(text) - text.rfind("\n") > _LONGEST_LINE:
            self._cut_lines.add(prefix)
        return text


class LiveDisplay(Display):
    """A picture below what is said, drawn a few times a second.

    Nothing draws in the background: `refresh` and `redraw` draw when it is time.
    """

    speaks = True

    def __init__(self, writer: GuardedWriter) -> None:
        self._console = VisibleCursorConsole(file=cast("IO[str]", writer), highlight=False, emoji=False)
        self._output = PrefixedOutput()
        self._live: Live | None = None
        self._picture: Picture | None = None
        self._next_draw_at = 0.0

    def start(self, picture: Picture, first_after_s: float = 0.0) -> None:
        self._picture = picture
        self._live = Live(self._frame(picture), console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def say(self, text: str, style: str = "") -> None:
        self._console.print(Text(printable(text), style), soft_wrap=True)

    def output(self, prefix: str, text: str) -> None:
        if shown := self._output.shown(prefix, text):
            self._console.print(shown, end="", soft_wrap=True)

    def refresh(self) -> None:
        if time.monotonic() >= self._next_draw_at:
            if self._live is not None and self._picture is not None:
                self._live.update(self._frame(self._picture), refresh=True)
            self._next_draw_at = time.monotonic() + DRAW_INTERVAL_S

    def redraw(self) -> None:
        self.refresh()

    def stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def close(self) -> None:
        self.stop()

    def _frame(self, picture: Picture) -> Text:
        width, height = self._console.size
        lines = [Text(text, style) for text, style in picture.frame(width, height - 1)]
        return Text("\n", no_wrap=True, overflow="crop").join(lines)
