"""The server's side of one connection, with limits that keep slow or endless clients from holding it.

uvicorn waits without end for a request's headers and for a client to read its answer, takes headers of any length, and
closes a connection although the client is still sending, which resets it: the client never reads the answer. Here a
connection is closed when its headers are late or too long, when an answer is left unread, and, where too many
connections are idle, when it is the oldest of them. What a client still sends is taken in first, within limits.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar
from weakref import WeakSet

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from paceline.web.limits import ConnectionLimits
from paceline.web.problem import GONE, OPEN_CONNECTIONS

LINGER_SECONDS = 5.0
LINGER_BYTES = 256 << 20
"""How many bytes after a refused request are read and discarded."""
LAST_REQUEST_SECONDS = 2.0
"""How long a client that had connected before the server was asked to stop may take to send its request."""
_LINE_BYTES = 4
"""Of each header beside its name and value."""


class Connection(HttpToolsProtocol):
    """One connection. `connection_class` makes the class for a server, with its limits and its connections."""

    limits: ClassVar[ConnectionLimits]
    coming: ClassVar[WeakSet[Connection]]
    """Those that were accepted, and are not made yet: with TLS there is a handshake in between."""
    idle: ClassVar[dict[Connection, None]]
    """Those without a request under way, oldest first."""
    stopping: ClassVar[bool]
    """The server ends: a connection has one more request at most."""

    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _in_headers = True
    _in_request = False
    """The client has begun a request, and not sent all of it."""
    _had_request = False
    _header_bytes = 0
    """Of headers that are not complete."""
    _parsed_header_bytes = 0
    _lingering = False
    _dropped = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.coming.add(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Transport(transport, self))  # type: ignore[arg-type]  # all that uvicorn calls is there
        self.coming.discard(self)
        self._wait_for_headers(LAST_REQUEST_SECONDS if self.stopping else self.limits.header_timeout_s)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._drop(len(data))
            return
        counted = self._in_headers
        super().data_received(data)
        if counted and self._in_headers and not self._lingering:
            self._header_bytes += len(data)
            if self._header_bytes > self.limits.max_header_bytes:
                self._end(431)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._parsed_header_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # what follows a chunked body is of no use here, and has no limit
            super().on_header(name, value)
            self._parsed_header_bytes += len(name) + len(value) + _LINE_BYTES

    def on_message_begin(self) -> None:
        self._in_headers = self._in_request = True
        self._parsed_header_bytes = 0
        super().on_message_begin()
        extensions = {GONE: self.transport.is_closing, OPEN_CONNECTIONS: self.connections.__len__}
        self.scope["extensions"] = extensions  # type: ignore[typeddict-item]

    def on_headers_complete(self) -> None:
        if self._lingering:
            return
        self._in_headers = False
        self._header_bytes = 0
        self._stop_waiting()
        if self._parsed_header_bytes > self.limits.max_header_bytes:  # they arrived all at once
            self._end(431)
            return
        super().on_headers_complete()
        self._had_request = True
        if self.stopping:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if not self._lingering:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._lingering:
            self._in_request = False
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._in_headers = True
            self._wait_for_headers(self.limits.keep_alive_s + self.limits.header_timeout_s)

    def send_400_response(self, msg: str) -> None:
        self._in_request = True  # of whatever kind
        super().send_400_response(msg)

    def shutdown(self) -> None:
        """The server ends. A client that has not sent its request yet may still do so: it may be on its way."""
        if self._lingering:
            self._wait_for_client_to_close()
        elif self._had_request and (not self.cycle.response_complete or not self._in_request):
            super().shutdown()
        else:
            self._wait_for_headers(LAST_REQUEST_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.limits.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread()

    def linger(self, transport: asyncio.Transport) -> None:
        """Close the connection when the client has done so, or has sent too much or for too long."""
        self._lingering = True
        self._wait_for_client_to_close()
        self.flow.resume_reading()
        if transport.can_write_eof():  # TLS cannot
            transport.write_eof()
        self._make_room()

    def _wait_for_client_to_close(self) -> None:
        self._stop_waiting()
        self.idle[self] = None
        seconds = LAST_REQUEST_SECONDS if self.stopping else LINGER_SECONDS
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _drop(self, size: int) -> None:
        self._dropped += size
        if self._dropped > LINGER_BYTES:
            self.transport.abort()

    def _make_room(self) -> None:
        if len(self.idle) > self.limits.max_idle_connections:
            next(iter(self.idle)).transport.abort()

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


class _Transport:
    """A transport as uvicorn uses it. To close it in the middle of a request is to linger."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection
        self.abort = transport.abort
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.write = transport.write

    def is_closing(self) -> bool:
        return self._connection._lingering or self._transport.is_closing()

    def close(self) -> None:
        if not self._connection._in_request or self._transport.is_closing():
            self._transport.close()
        elif not self._connection._lingering:
            self._connection.linger(self._transport)


def connection_class(limits: ConnectionLimits) -> type[Connection]:
    """The class of one server's connections."""
    attributes: dict[str, Any] = {"limits": limits, "coming": WeakSet(), "idle": {}, "stopping": False}
    return type("ServerConnection", (Connection,), attributes)
