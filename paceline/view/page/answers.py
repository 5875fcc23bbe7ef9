"""From a function that reads files to a route: it runs in a thread, and what goes wrong becomes an answer."""

from __future__ import annotations

import gzip
import logging
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from paceline.air.errors import PacelineError, RequestError
from paceline.view.page.encoding import encode
from paceline.view.page.state import PageState
from paceline.web.problem import Problem

logger = logging.getLogger("paceline.view")

Endpoint = Callable[[Request], Awaitable[Response]]
Work = Callable[[PageState, Request], Any]

_WORTH_PACKING = 2_000
_FRESH = {"cache-control": "no-store", "vary": "accept-encoding"}


def state_of(request: Request) -> PageState:
    state: PageState = request.app.state.page
    return state


def answering(work: Work, *, slow: bool = False, quick: bool = False) -> Endpoint:
    """The route whose answer `work` computes: a Response, or something that becomes JSON.

    `slow`: it may take minutes. `quick`: it does not read runs, so a store that hangs must not hold it up.
    """

    async def endpoint(request: Request) -> Response:
        state = state_of(request)
        run = state.in_slow_thread if slow else state.in_quick_thread if quick else state.in_thread
        try:
            return await run(_answer, work, state, request)
        except TimeoutError:
            return problem_answer(Problem(504, f"{state.root} has not answered in time. Try again later."))

    return endpoint


def _answer(work: Work, state: PageState, request: Request) -> Response:
    try:
        found = work(state, request)
        return found if isinstance(found, Response) else json_answer(request, found)
    except Exception as error:
        return problem_answer(_as_problem(error))


def _as_problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestError):
        return Problem(409, str(error))
    if isinstance(error, FileNotFoundError):
        return Problem(404, "The files of this run are gone.")
    if isinstance(error, PacelineError):
        return Problem(422, str(error))
    identifier = secrets.token_hex(6)
    logger.error("The page could not answer (id %s)", identifier, exc_info=error)
    return Problem(500, f"The server failed. Its log says why, under the id {identifier}.", id=identifier)


def json_answer(request: Request, document: Any) -> Response:
    """Compressed, if that is worth it. NaN and infinities become null."""
    content = encode(document)
    if len(content) < _WORTH_PACKING:
        return Response(content, media_type="application/json", headers=_FRESH)
    return packed_answer(request, gzip.compress(content, 1), "application/json")


def packed_answer(request: Request, packed: bytes, kind: str) -> Response:
    """The answer that is compressed already."""
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(packed, media_type=kind, headers={**_FRESH, "content-encoding": "gzip"})
    return Response(gzip.decompress(packed), media_type=kind, headers=_FRESH)


def problem_answer(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    """What is said instead of an answer."""
    own = {name.decode(): value.decode() for name, value in problem.headers}
    return Response(problem.content(), problem.status, {**own, **(headers or {})}, media_type="application/json")


class Streamed(StreamingResponse):
    """An answer that comes in pieces. However it ends, `at_end` is called, also if it never began."""

    def __init__(self, pieces: AsyncIterator[bytes], at_end: Callable[[], None], **more: Any) -> None:
        super().__init__(pieces, **more)
        self._at_end = at_end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._at_end()


async def not_found(request: Request, error: Exception) -> Response:
    return problem_answer(Problem(404, "There is nothing here."))


async def wrong_method(request: Request, error: Exception) -> Response:
    headers = dict((error.headers if isinstance(error, HTTPException) else None) or {})
    return problem_answer(Problem(405, f"This takes {headers.get('Allow', '')}, not {request.method}."), headers)


# -- what requests ask for ---------------------------------------------------------------------------


def text(request: Request, name: str, default: str | None = None, *, longest: int = 1_000) -> str:
    """A parameter; a Problem if it is missing and has no default."""
    given = request.query_params.get(name, default)
    if given is None:
        raise Problem(400, f"The parameter {name} is missing.")
    if len(given) > longest:
        raise Problem(400, f"The parameter {name} is longer than {longest} characters.")
    return given


def whole(request: Request, name: str, default: int | None = None, *, least: int = 0, most: int = 2**62) -> int:
    """A parameter that is a whole number within limits."""
    given = text(request, name, None if default is None else str(default), longest=20)
    if not given.removeprefix("-").isdecimal() or not least <= int(given) <= most:
        raise Problem(400, f"{name} must be a whole number from {least} to {most}.")
    return int(given)


def number(request: Request, name: str, default: float | None = None) -> float | None:
    """A parameter that is a finite number; without one, the default."""
    given = request.query_params.get(name, "")
    if not given:
        return default
    try:
        value = float(given[:100])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Problem(400, f"{name} must be a number.")
    return value


def ids_in(request: Request, most: int = 100) -> list[str]:
    """The runs that a request is about."""
    ids = list(dict.fromkeys(each for each in text(request, "ids", longest=most * 65).split(",") if each))
    if not 0 < len(ids) <= most:
        raise Problem(400, f"Name from 1 to {most} runs.")
    return ids
