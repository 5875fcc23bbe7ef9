"""A request that is not answered with predictions: why, and how the client is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

GONE = "paceline.gone"
"""Among the extensions of a request's scope: a function that tells whether the client has left."""

LINGER_SECONDS = 1.0
LINGER_BYTES = 4 << 20
"""So much of a refused body is still taken in and dropped: a connection that is closed before the client has sent
what it wanted to send is reset, and the client never sees the reason."""


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
    await send(_start(status, kind, content, headers))
    await send({"type": "http.response.body", "body": content})


async def refuse(problem: Problem, receive: Receive, send: Send, *, unread: bool) -> None:
    """Send the problem. If the request's body was not `read`, the connection ends with it."""
    content = problem.content()
    if not unread:
        await answer(send, problem.status, b"application/json", content, *problem.headers)
        return
    await send(_start(problem.status, b"application/json", content, (*problem.headers, (b"connection", b"close"))))
    await send({"type": "http.response.body", "body": content, "more_body": True})
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            await _drop_body(receive)
    except TimeoutError:
        pass
    await send({"type": "http.response.body", "body": b""})


async def _drop_body(receive: Receive) -> None:
    dropped = 0
    while dropped <= LINGER_BYTES:
        message = await receive()
        dropped += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return


def _start(status: int, kind: bytes, content: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> dict[str, Any]:
    own = [(b"content-type", kind), (b"content-length", str(len(content)).encode()), *headers]
    return {"type": "http.response.start", "status": status, "headers": own}
