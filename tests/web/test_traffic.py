"""What servers count, and the series that a scrape makes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.web import prometheus
from paceline.web.traffic import Histogram, Traffic


async def nothing(request: Request) -> Response:
    return Response(b"")


async def ask(app: Any, path: str, traffic: Traffic) -> bytes:
    """The body of the answer to a GET."""
    pieces = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        pieces.append(message.get("body", b""))

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "root_path": ""}
    await app(scope, receive, traffic.counted(scope, send))
    return b"".join(pieces)


def test_a_route_with_parameters_is_one_series() -> None:
    routes = [Route("/run/{id}", nothing), Route("/", nothing)]
    traffic = Traffic()
    traffic.know(routes)
    app = Starlette(routes=routes)
    for path in ("/run/a", "/run/b", "/run/c/d", "/", "/favicon.ico"):
        asyncio.run(ask(app, path, traffic))
    assert traffic.requests == {
        ("/run/{id}", "GET", 200): 2,
        ("other", "GET", 404): 2,
        ("/", "GET", 200): 1,
    }
    assert set(traffic.seconds) == {"/run/{id}", "/", "other"}


def test_a_histogram_counts_up_to_its_bounds() -> None:
    histogram = Histogram([1, 2, 4])
    for value in (0.5, 1, 1.5, 4, 100):
        histogram.observe(value)
    assert histogram.cumulative() == ([("1.0", 2), ("2.0", 3), ("4.0", 4), ("+Inf", 5)], 107.0)


@pytest.mark.parametrize(
    "text", ['quote " and \\ backslash', "line\nbreak\r", "\x1b[31mred", "\ud800", "umlaut ü", "x" * 10_000, "", "{}=,"]
)
def test_labels_can_be_any_text(text: str) -> None:
    route = prometheus.metrics_route(Traffic(), lambda: [prometheus.info("about", "Words.", text=text)])
    content = asyncio.run(ask(Starlette(routes=[route]), "/metrics", Traffic())).decode()
    (about,) = (family for family in text_string_to_metric_families(content) if family.name == "about")
    (sample,) = about.samples
    assert sample.labels == {"text": prometheus.shown(text)}
    assert sample.labels["text"].isprintable()
    assert len(sample.labels["text"]) <= prometheus.LONGEST_LABEL
