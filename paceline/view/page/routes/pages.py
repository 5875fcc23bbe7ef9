"""What a browser shows, and what the server says of itself."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.air.version import version
from paceline.view.page.answers import answering, packed_answer
from paceline.view.page.bundle import PLACE_OF_TOKEN, bundle
from paceline.view.page.session import POLICY
from paceline.view.page.state import PageState
from paceline.web.problem import Problem


def page(state: PageState, request: Request) -> Response:
    """The same for every address: the page reads from it what to show."""
    token = request.app.state.page_token.encode()
    headers = {"content-security-policy": POLICY, "cache-control": "no-store"}
    return Response(bundle().index.replace(PLACE_OF_TOKEN, token), media_type="text/html", headers=headers)


def asset(state: PageState, request: Request) -> Response:
    found = bundle().assets.get(request.path_params["name"])
    if found is None:
        raise Problem(404, "There is no such file.")
    answer = packed_answer(request, found.packed, found.kind)
    answer.headers["cache-control"] = "public, max-age=31536000, immutable"  # their names change with their content
    return answer


def about(state: PageState, request: Request) -> Any:
    return {
        "version": version(),
        "root": state.root,
        "hostname": state.hostname,
        "read_only": state.read_only,
        "started": state.started,
        "problem": state.problem,
    }


async def healthz(request: Request) -> Response:
    return Response(b'{"status":"ok"}', media_type="application/json")


ROUTES = [
    Route("/healthz", healthz),
    Route("/", answering(page, quick=True)),
    Route("/compare", answering(page, quick=True)),
    Route("/run/{id}", answering(page, quick=True)),
    Route("/search/{id}", answering(page, quick=True)),
    Route("/assets/{name}", answering(asset, quick=True)),
    Route("/api/about", answering(about, quick=True)),
]
