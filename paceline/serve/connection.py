"""The server's side of one connection, with limits that keep slow or endless clients from holding it.

uvicorn waits without end for a request's headers and for a client to read its answer, and takes headers of any
length. Here a connection is closed when its headers are late or too long, when an answer is left unread, and, where
too many connections are idle, when it is the oldest of them.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from paceline.serve.limits import Limits
from paceline.serve.problem import GONE


class Connection(HttpToolsProtocol):
    """One connection. `connection_class` makes the class for a server, with its limits and its idle connections."""

    limits: ClassVar[Limits]
    idle: ClassVar[dict[Connection, None]]
    """Those without a request under way, oldest first."""

    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _in_headers = True
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_headers(self.limits.header_timeout_s)
        if len(self.idle) > self.limits.max_idle_connections:
            next(iter(self.idle)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        counted = self._in_headers
        super().data_received(data)
        if counted and self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > self.limits.max_header_bytes:
                self._end(431)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # what follows a chunked body is of no use here, and has no limit
            super().on_header(name, value)

    def on_message_begin(self) -> None:
        self._in_headers = True
        super().on_message_begin()
        self.scope["extensions"] = {GONE: self.transport.is_closing}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._in_headers = True
            self._wait_for_headers(self.limits.keep_alive_s + self.limits.header_timeout_s)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.limits.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread()

    def _wait_for_headers(self, seconds: float) -> None:
        self._stop_waiting()
        self.idle[self] = None
        self._deadline = self.loop.call_later(seconds, self._end, 408)

    def _stop_waiting(self) -> None:
        self.idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _end(self, status: int) -> None:
        if not self.transport.is_closing():
            self.transport.write(STATUS_LINE[status] + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()


def connection_class(limits: Limits) -> type[Connection]:
    """The class of one server's connections."""
    attributes: dict[str, Any] = {"limits": limits, "idle": {}}
    return type("ServerConnection", (Connection,), attributes)
