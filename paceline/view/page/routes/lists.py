"""All runs: the list, small curves for it, and the stream that keeps a tab up to date."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.air.errors import PacelineError
from paceline.view.page.answers import Streamed, answering, ids_in, packed_answer, problem_answer, state_of, text, whole
from paceline.view.page.curves import spark
from paceline.view.page.live import MOST_STREAMS, Stream, Wishes
from paceline.view.page.state import PageState
from paceline.web.problem import RETRY, Problem

_LONGEST_WISHES = 60_000


def everything(state: PageState, request: Request) -> Response:
    state.look()
    return packed_answer(request, state.listing.packed(), "application/json")


def sparks(state: PageState, request: Request) -> Any:
    """null for a run that does not have the metric, or that cannot be read."""
    metric, points = text(request, "metric"), whole(request, "points", 40, least=4, most=400)
    found: dict[str, Any] = {}
    for id in ids_in(request):
        try:
            found[id] = spark(state.curves.get(state.place(id)), metric, points)
        except (Problem, PacelineError, FileNotFoundError):
            found[id] = None
    return found


async def live(request: Request) -> Response:
    """See live.py."""
    state, kind = state_of(request), "text/event-stream"
    if request.method == "HEAD":
        return Response(media_type=kind)
    try:
        stream = Stream(state, _wishes(request), request.headers.get("last-event-id", ""))
    except Problem as problem:
        return problem_answer(problem)
    if state.streams >= MOST_STREAMS:
        text = f"{MOST_STREAMS} tabs follow this server already. Close some of them."
        return problem_answer(Problem(503, text, headers=RETRY))
    state.streams += 1

    def end() -> None:
        state.streams -= 1

    return Streamed(stream.events(), end, media_type=kind, headers={"cache-control": "no-store"})


def _wishes(request: Request) -> Wishes:
    given: dict[str, Any] = {"known_list": text(request, "list", "", longest=100)}
    try:
        for name in ("series", "logs"):
            given[name] = msgspec.json.decode(text(request, name, "[]", longest=_LONGEST_WISHES) or "[]")
        return msgspec.convert(given, Wishes)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem(400, f"What to follow cannot be read: {error}.") from None


ROUTES = [
    Route("/api/list", answering(everything, quick=True)),
    Route("/api/sparks", answering(sparks)),
    Route("/api/live", live),
]
