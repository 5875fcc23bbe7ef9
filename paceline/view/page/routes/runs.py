"""One run: its facts, its curves, its ranks, and the two requests that a live one takes."""

from __future__ import annotations

import gzip
from typing import Any, cast, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.air.errors import LogsNotHereError
from paceline.run.requests import request_stacks, request_stop
from paceline.view.logs import ranks_of
from paceline.view.page.answers import answering, number, packed_answer, text, whole
from paceline.view.page.curves import Axis, curves
from paceline.view.page.routes.checkpoints import shown
from paceline.view.page.state import PageState
from paceline.view.report_html import run_report, search_report
from paceline.web.problem import Problem

REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; sandbox"


def facts(state: PageState, request: Request) -> Any:
    id = request.path_params["id"]
    found, place, line = state.facts(id), state.place(id), state.line(id)
    series = state.curves.get(place)
    return {
        **msgspec.structs.asdict(found),
        "checkpoints": shown(found.checkpoints),
        "id": id,
        "kind": line.kind,
        "parent": line.parent,
        "metrics": series.metrics(),
        "rows": series.rows,
        "ranks": _ranks(state, place),
    }


def _ranks(state: PageState, place: str) -> list[int]:
    """Those that have a log here."""
    try:
        return ranks_of(place, state.filesystem)
    except LogsNotHereError:
        return []


def series(state: PageState, request: Request) -> Any:
    id, axis = text(request, "run"), text(request, "x", "step")
    metrics = request.query_params.getlist("metric")
    if axis not in get_args(Axis):
        raise Problem(400, f"x must be one of {', '.join(get_args(Axis))}.")
    if not 0 < len(metrics) <= 100:
        raise Problem(400, "Name from 1 to 100 metrics.")
    smooth = number(request, "smooth", 0.0) or 0.0
    if not 0 <= smooth < 1:
        raise Problem(400, "smooth must be at least 0 and less than 1.")
    return curves(
        id,
        state.curves.get(state.place(id)),
        metrics,
        cast(Axis, axis),
        pixels=whole(request, "pixels", 1200, least=1, most=10_000),
        smooth=smooth,
        low=number(request, "from"),
        high=number(request, "to"),
        log=text(request, "log", "") == "1",
    )


def ranks(state: PageState, request: Request) -> Any:
    """What each rank of a live run on this machine takes of it; empty for others."""
    return state.machine.ranks(state.place(request.path_params["id"]))


def report(state: PageState, request: Request) -> Response:
    """One file with everything, to send to others."""
    id = request.path_params["id"]
    place, search = state.place(id), state.listing.search(id)
    found = run_report(place, state.filesystem) if search is None else search_report(search)
    headers = {"content-security-policy": REPORT_POLICY, "content-disposition": 'attachment; filename="report.html"'}
    answer = packed_answer(request, gzip.compress(found.encode("utf-8", "replace"), 1), "text/html; charset=utf-8")
    answer.headers.update(headers)
    return answer


def stop(state: PageState, request: Request) -> Any:
    _check_may_ask(state)
    request_stop(state.place(request.path_params["id"]))
    return {"stopping": True}


def stacks(state: PageState, request: Request) -> Any:
    _check_may_ask(state)
    return request_stacks(state.place(request.path_params["id"]))


def _check_may_ask(state: PageState) -> None:
    if state.read_only:
        raise Problem(403, "This server only shows runs: it was started with --read-only.")


ROUTES = [
    Route("/api/run/{id}", answering(facts)),
    Route("/api/run/{id}/stop", answering(stop, slow=True), methods=["POST"]),
    Route("/api/run/{id}/stacks", answering(stacks, slow=True), methods=["POST"]),
    Route("/api/run/{id}/ranks", answering(ranks)),
    Route("/api/run/{id}/report", answering(report, slow=True)),
    Route("/api/series", answering(series)),
]
