"""A request's body, within limits of size and time."""

from __future__ import annotations

import asyncio

from paceline.web.problem import RETRY, Problem, Receive


class Budget:
    """Bytes of bodies that the server holds at the moment, all requests together."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, size: int) -> None:
        if size > self._left:
            raise Problem(503, "The server holds too many bodies already. Try again.", headers=RETRY)
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size


async def read_body(
    receive: Receive, length: int | None, max_bytes: int, timeout_s: float, budget: Budget | None = None
) -> bytes:
    """The whole body. What is taken from the budget is the caller's to give back: the length of what is returned."""
    if length is not None and length > max_bytes:
        raise _too_large(max_bytes)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Problem(400, "The client left before its body was complete.")
                piece = message.get("body", b"")
                if size + len(piece) > max_bytes:
                    raise _too_large(max_bytes)
                if budget is not None:
                    budget.take(len(piece))
                size += len(piece)
                pieces.append(piece)
                if not message.get("more_body"):
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    except BaseException as error:
        if budget is not None:
            budget.give_back(size)
        if isinstance(error, TimeoutError):
            raise Problem(408, f"The body was not complete after {timeout_s:g} s.") from None
        raise


def _too_large(max_bytes: int) -> Problem:
    return Problem(413, f"The body is larger than the {max_bytes} bytes that this server takes.")
