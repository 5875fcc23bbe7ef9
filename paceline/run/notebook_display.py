"""A live view in the cell of a notebook: HTML that is replaced in place, and stays when it is done.

IPython is not imported before: only a program that runs in it gets here.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from paceline.air import html
from paceline.run.display import Display, Picture, last_overwrite, printable

DRAW_INTERVAL_S = 0.3
"""At most so often when there is news."""
IDLE_INTERVAL_S = 1.0
"""At most so often when only time has passed."""
_LINES = 100
_LONGEST_LINE = 300
_MESSAGES = 30
_COLOURS = {"red": html.BAD, "yellow": html.WARNING}


class NotebookDisplay(Display):
    """What is said, what workers write and the picture, one below the other."""

    speaks = True
    draws_curves = True

    def __init__(self) -> None:
        self._picture: Picture | None = None
        self._is_over = False
        self._is_closed = False
        self._messages: deque[tuple[str, str]] = deque(maxlen=_MESSAGES)
        self._said = 0
        self._closing: list[str] = []
        """The closing words: the picture says the same, but text has no picture."""
        self._output: deque[str] = deque(maxlen=_LINES)
        self._written = 0
        self._handle: Any = None
        self._next_draw_at = 0.0
        self._next_idle_draw_at = 0.0

    def start(self, picture: Picture, first_after_s: float = 0.0) -> None:
        self._picture = picture
        self._draw()

    def say(self, text: str, style: str = "") -> None:
        if self._is_over and self._picture is not None:
            self._closing.append(text)
            return
        self._said += 1
        self._messages.append((printable(text), style))
        self._draw()

    def output(self, prefix: str, text: str) -> None:
        for line in printable(last_overwrite(text).removesuffix("\n")).split("\n"):
            cut = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}… (the log file has the whole line)"
            self._output.append(f"{prefix}{cut}")
            self._written += 1

    def refresh(self) -> None:
        if time.monotonic() >= self._next_draw_at:
            self._draw()

    def redraw(self) -> None:
        if time.monotonic() >= self._next_idle_draw_at:
            self._draw()

    def stop(self) -> None:
        self._is_over = True

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._draw()

    def _draw(self) -> None:
        if self._picture is None and not self._messages:
            return
        self._next_draw_at = time.monotonic() + DRAW_INTERVAL_S
        self._next_idle_draw_at = time.monotonic() + IDLE_INTERVAL_S
        shown = {"text/html": str(self._page()), "text/plain": self._text()}
        try:
            from IPython.display import display

            if self._handle is None:
                self._handle = display(shown, raw=True, display_id=True)
            else:
                self._handle.update(shown, raw=True)
        except Exception:  # whoever looks on must not end a training
            self._picture = None

    def _page(self) -> html.Markup:
        picture = "" if self._picture is None else self._picture.html()
        return html.whole(picture, self._messages_html(), self._output_html())

    def _messages_html(self) -> html.Markup:
        parts = []
        if self._said > len(self._messages):
            parts.append(html.muted(f"… {self._said - len(self._messages):,} earlier messages"))
        for text, style in self._messages:
            colour = _COLOURS.get(style)
            parts.append(html.coloured(text, colour) if colour else html.escaped(text))
        lines = html.joined(html.element("div", part, "white-space:pre-wrap") for part in parts)
        return html.element("div", lines, "margin:4px 0;font-size:90%")

    def _output_html(self) -> html.Markup:
        if not self._output:
            return html.Markup()
        text = "\n".join(self._output)
        if self._written > len(self._output):
            text = f"… {self._written - len(self._output):,} earlier lines are in the log files\n{text}"
        return html.details("output of workers", html.scrolling(text), is_open=True)

    def _text(self) -> str:
        if self._closing:
            return printable("\n".join(self._closing))
        return "" if self._picture is None else printable(self._picture.line())
