"""A request that is not answered with predictions: why, and how the client is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

RETRY = ((b"retry-after", b"1"),)
"""Header of an answer to a client that should try again."""
GONE = "paceline.gone"
"""Among the extensions of a request's scope: a function that tells whether the client has left."""
OPEN_CONNECTIONS = "paceline.connections"
"""Among the same: a function that gives the number of the server's open connections."""


class Problem(Exception):  # noqa: N818 - an answer to a client, not an error of ours
    """Becomes an answer ``{"detail": reason}`` with this status."""

    def __init__(self, status: int, reason: str, *, headers: tuple[tuple[bytes, bytes], ...] = (), **more: Any) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers
        self.more = more

    def content(self) -> bytes:
        return msgspec.json.encode({"detail": self.reason, **self.more})


async def answer(send: Send, status: int, kind: bytes, content: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Send a whole response."""
    own = [(b"content-type", kind), (b"content-length", str(len(content)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": content})


async def refuse(problem: Problem, send: Send, *, unread: bool) -> None:
    """Send the problem. If the request's body was not read, the connection ends with it."""
    headers = (*problem.headers, (b"connection", b"close")) if unread else problem.headers
    await answer(send, problem.status, b"application/json", problem.content(), *headers)
