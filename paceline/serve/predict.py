"""POST /predict: from a body to an answer. Plain ASGI, because this is the path that is taken all the time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from paceline.serve import arrow_body, json_body
from paceline.serve.batcher import Batcher
from paceline.serve.limits import Limits
from paceline.serve.model import ServedModel
from paceline.serve.rows import Answer, RequestRows
from paceline.web.body import Budget, read_body
from paceline.web.problem import GONE, Problem, Receive, Send, answer, refuse

JSON = b"application/json"
ARROW = arrow_body.MEDIA_TYPE
LARGE_BODY = 256 << 10
"""Bytes from which decoding would keep the event loop too long, and is done in a thread."""
LARGE_ANSWER = 4096
"""The same in rows, for encoding."""


class PredictEndpoint:
    """The ASGI application of the route."""

    def __init__(self, served: ServedModel, batcher: Batcher, limits: Limits) -> None:
        self._served = served
        self._batcher = batcher
        self._limits = limits
        self._budget = Budget(limits.held_bytes)

    @property
    def waiting(self) -> int:
        """How many requests wait for the model."""
        return self._batcher.waiting

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        unread = True
        held = 0
        try:
            headers = read_headers(scope)
            limits = self._limits
            body = await read_body(receive, headers.length, limits.max_body_bytes, limits.body_timeout_s, self._budget)
            unread, held = False, len(body)
            rows = await self._decoded(body, headers.is_arrow)
            gone = scope.get("extensions", {}).get(GONE)
            predictions = await self._batcher.predict(rows, arrow=headers.wants_arrow, gone=gone)
            content = await _encoded(predictions, rows.count)
        except Problem as problem:
            await refuse(problem, send, unread=unread)
        else:
            await answer(send, 200, ARROW if headers.wants_arrow else JSON, content)
        finally:
            self._budget.give_back(held)

    async def _decoded(self, body: bytes, is_arrow: bool) -> RequestRows:
        if len(body) >= LARGE_BODY:
            return await asyncio.to_thread(self._decode, body, is_arrow)
        return self._decode(body, is_arrow)

    def _decode(self, body: bytes, is_arrow: bool) -> RequestRows:
        model, most = self._served.current, self._limits.max_rows
        if is_arrow:
            return arrow_body.decode(body, model.columns, most)
        return json_body.decode(body, model.columns, most, nameless=model.nameless)


async def _encoded(predictions: Answer, rows: int) -> bytes:
    if rows >= LARGE_ANSWER:
        return await asyncio.to_thread(_encode, predictions)
    return _encode(predictions)


def _encode(predictions: Answer) -> bytes:
    return json_body.encode(predictions) if isinstance(predictions, dict) else arrow_body.encode(predictions)


@dataclass(slots=True)
class Headers:
    """What a request says about its body and the answer it wants."""

    is_arrow: bool
    wants_arrow: bool
    length: int | None


def read_headers(scope: dict[str, Any]) -> Headers:
    """Raises the Problem for kinds of bodies that are not taken: nothing but JSON and Arrow is ever decoded."""
    headers = dict(scope["headers"])
    media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if media not in (JSON, ARROW) or encoding not in (b"", b"identity"):
        raise Problem(415, f"The body must be {JSON.decode()} or {ARROW.decode()}, and not compressed.")
    is_arrow = media == ARROW
    accept, length = headers.get(b"accept"), headers.get(b"content-length", b"")
    wants_arrow = _wants_arrow(accept.lower(), is_arrow) if accept else is_arrow
    return Headers(is_arrow, wants_arrow, int(length) if length.isdigit() else None)


def _wants_arrow(accept: bytes, is_arrow: bool) -> bool:
    offered = {part.partition(b";")[0].strip() for part in accept.split(b",")}
    if (ARROW if is_arrow else JSON) in offered or offered & {b"*/*", b"application/*"}:
        return is_arrow
    if (JSON if is_arrow else ARROW) in offered:
        return not is_arrow
    raise Problem(406, f"Answers are {JSON.decode()} or {ARROW.decode()}; the Accept header allows neither.")
