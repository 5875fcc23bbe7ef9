"""POST /predict: from a body to an answer. Plain ASGI, because this is the path that is taken all the time."""

from __future__ import annotations

import asyncio
from typing import Any

from paceline.serve import arrow_body, json_body
from paceline.serve.answers import Answer
from paceline.serve.batcher import Batcher
from paceline.serve.body import ARROW, JSON, Budget, read_body, read_headers
from paceline.serve.limits import Limits
from paceline.serve.problem import GONE, Problem, Receive, Send, answer, refuse
from paceline.serve.rows import Rows
from paceline.serve.served import ServedModel

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

    async def _decoded(self, body: bytes, is_arrow: bool) -> Rows:
        if len(body) >= LARGE_BODY:
            return await asyncio.to_thread(self._decode, body, is_arrow)
        return self._decode(body, is_arrow)

    def _decode(self, body: bytes, is_arrow: bool) -> Rows:
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
