"""All runs: the list, small curves for it, comparisons, and the stream that keeps a tab up to date."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from paceline.air.errors import PacelineError
from paceline.view.catalog import run_facts
from paceline.view.page.answers import answering, ids_in, packed_answer, problem_answer, state_of, text, whole
from paceline.view.page.curves import spark
from paceline.view.page.live import Stream, Wishes
from paceline.view.page.state import PageState
from paceline.web.problem import Problem

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


def compare(state: PageState, request: Request) -> Any:
    """The configurations of runs, only where they differ."""
    from importlib import import_module

    differing = import_module("paceline.view.compare").differing
    ids = ids_in(request)
    configs = {id: _config(state, id) for id in ids}
    different = differing(configs)
    keys = {key for config in configs.values() for key in differing({"": config, " ": {}})}
    runs = [msgspec.structs.asdict(state.listing.line(id)) for id in ids]
    return {"runs": runs, "differing": different, "same": len(keys - different.keys())}


def _config(state: PageState, id: str) -> dict[str, Any]:
    facts = run_facts(state.place(id), state.filesystem)
    config = facts.config or {}
    loop = config.get("train_loop_config")
    return loop if isinstance(loop, dict) and len(config) == 1 else config


async def live(request: Request) -> Response:
    """See live.py."""
    try:
        wishes = _wishes(request)
        events = Stream(state_of(request), wishes, request.headers.get("last-event-id", "")).events()
        first = await anext(events)
    except Problem as problem:
        return problem_answer(problem)

    async def all_events() -> Any:
        yield first
        async for event in events:
            yield event

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(all_events(), media_type="text/event-stream", headers=headers)


def _wishes(request: Request) -> Wishes:
    given: dict[str, Any] = {"known_list": text(request, "list", "", longest=100)}
    try:
        for name in ("series", "logs"):
            given[name] = msgspec.json.decode(text(request, name, "[]", longest=_LONGEST_WISHES) or "[]")
        return msgspec.convert(given, Wishes)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem(400, f"What to follow cannot be read: {error}.") from None


ROUTES = [
    Route("/api/list", answering(everything)),
    Route("/api/sparks", answering(sparks)),
    Route("/api/compare", answering(compare)),
    Route("/api/live", live),
]
