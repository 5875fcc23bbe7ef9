"""A plain HTTP client for the tests of servers."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 30.0
"""Seconds after which something that must come is given up; far more than it takes."""
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE")


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json["detail"])


@dataclass
class Client:
    """A running server, as a client sees it."""

    running: Any
    """Has a url and a token; it may run in another process."""

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.running.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def ask(self, method: str, path: str, body: Any = None, headers: Any = None, token: str | None = "") -> Answer:
        """One request on a connection of its own; None as token: none is sent."""
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE)
        token = self.running.token if token == "" else token
        authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            connection.request(method, path, body, {**authorization, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(self.address, timeout=PATIENCE)


def read_all(connection: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    pieces = []
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


def read_to_end(connection: socket.socket) -> bytes:
    """The same, where a reset is an error."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other threads bring about."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.002)
