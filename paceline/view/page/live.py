"""The stream of a tab: server-sent events with what is new in the list, the curves and the logs that it shows.

Each event carries only what the tab does not have, and the id of an event says what it has: a browser that reconnects
sends it back. A slow tab gets fewer and larger events, and one that reads nothing is disconnected by the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from paceline.air.errors import PacelineError
from paceline.view.logs import read_log
from paceline.view.page.curves import Axis, cursor_of, new_rows
from paceline.view.page.encoding import encode
from paceline.web.problem import Problem

if TYPE_CHECKING:
    from paceline.view.page.state import PageState

TICK_SECONDS = 0.25
PING_SECONDS = 10.0
SLOW_SECONDS = 1.0
"""So long the list waits for curves and logs that come with it."""
MOST_STREAMS = 100
MOST_LOG_BYTES = 256 << 10
"""Of one log in one event."""
MOST_LOGS = 256
"""That one tab follows; the page does not ask for more."""

Id = Annotated[str, Meta(max_length=64)]
Count = Annotated[int, Meta(ge=0, le=2**62)]


class SeriesWish(Struct):
    """A run whose new rows a tab wants."""

    run: Id
    metrics: Annotated[list[Annotated[str, Meta(max_length=1000)]], Meta(max_length=100)]
    x: Axis = "step"
    smooth: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    cursor: Count = 0


class LogWish(Struct):
    """A rank whose output a tab follows."""

    run: Id
    rank: Count
    offset: Count = 0


class Wishes(Struct):
    """What a tab shows, and how much of it it has."""

    known_list: str = ""
    """The cursor of the list; empty: the tab does not show it."""
    series: Annotated[list[SeriesWish], Meta(max_length=30)] = []
    logs: Annotated[list[LogWish], Meta(max_length=MOST_LOGS)] = []


class _Position(Struct, array_like=True):
    """The id of an event: how far list, curves and logs have come."""

    known_list: Annotated[str, Meta(max_length=100)]
    series: list[Count]
    logs: list[Count]


class Stream:
    """One tab's stream."""

    def __init__(self, state: PageState, wishes: Wishes, last_id: str = "") -> None:
        self._state = state
        self._wishes = wishes
        self._go_on_from(last_id)

    def _go_on_from(self, last_id: str) -> None:
        with contextlib.suppress(msgspec.DecodeError):
            position = msgspec.json.decode(last_id, type=_Position)
            series, logs = self._wishes.series, self._wishes.logs
            if len(position.series) == len(series) and len(position.logs) == len(logs):
                self._wishes.known_list = position.known_list if self._wishes.known_list else ""
                for wish, cursor in zip(series, position.series, strict=True):
                    wish.cursor = cursor
                for follow, offset in zip(logs, position.logs, strict=True):
                    follow.offset = offset

    async def events(self) -> AsyncIterator[bytes]:
        """Until the server ends; that the tab is gone is noticed by whoever sends them."""
        state = self._state
        yield b"retry: 1000\n\n"
        sent = -math.inf  # the first ping at once: the page knows then that the stream works
        reading: asyncio.Future[list[tuple[str, Any]]] | None = None
        while not state.closing.is_set():
            reading = reading or asyncio.wrap_future(state.begin(self._collect))
            await asyncio.wait([reading], timeout=SLOW_SECONDS)
            read = reading.result() if reading.done() else None
            reading = reading if read is None else None
            found = await state.in_quick_thread(self._encoded, read)
            if found or time.monotonic() - sent >= PING_SECONDS:
                yield b"".join(found) or b"event: ping\ndata: {}\n\n"
                sent = time.monotonic()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(state.closing.wait(), TICK_SECONDS)

    def _list(self) -> list[tuple[str, Any]]:
        """What is new in the list, which is in memory."""
        wishes = self._wishes
        if not wishes.known_list or (changes := self._state.listing.since(wishes.known_list)) is None:
            return []
        wishes.known_list = changes.cursor
        return [("list", changes)]

    def _collect(self) -> list[tuple[str, Any]]:
        """What is new in the curves and logs that the tab shows, from their files."""
        events: list[tuple[str, Any]] = []
        for wish in self._wishes.series:
            events += self._rows(wish)
        for follow in self._wishes.logs:
            events += self._log(follow)
        return events

    def _encoded(self, read: list[tuple[str, Any]] | None) -> list[bytes]:
        """The events of the list, and those that were read; None: a store hangs, and they are still being read.

        Then the list continues without an id: cursors may be ahead of what was sent.
        """
        events = self._list() + (read or [])
        if not events:
            return []
        wishes = self._wishes
        position = _Position(
            wishes.known_list, [wish.cursor for wish in wishes.series], [each.offset for each in wishes.logs]
        )
        mark = b"id: %b\n" % msgspec.json.encode(position) if read is not None else b""
        return [mark + b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data)) for name, data in events]

    def _rows(self, wish: SeriesWish) -> list[tuple[str, Any]]:
        try:
            series = self._state.curves.get(self._state.place(wish.run))
        except (Problem, PacelineError, FileNotFoundError):
            return []  # it is gone, or damaged: the list says so
        found = new_rows(wish.run, series, wish.metrics, wish.x, wish.smooth, wish.cursor)
        if found is None:
            wish.cursor = cursor_of(series)
            return [("rewind", {"run": wish.run})]
        if found.cursor == wish.cursor:
            return []
        wish.cursor = found.cursor
        return [("rows", found)]

    def _log(self, follow: LogWish) -> list[tuple[str, Any]]:
        try:
            place = self._state.place(follow.run)
            part = read_log(place, follow.rank, start=follow.offset, max_bytes=MOST_LOG_BYTES)
        except (Problem, PacelineError, FileNotFoundError):
            return []
        if part.end <= follow.offset:
            return []
        follow.offset = part.end
        return [
            ("logs", {"run": follow.run, "rank": follow.rank, "start": part.start, "end": part.end, "text": part.text})
        ]
