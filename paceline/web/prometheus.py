"""GET /metrics: what a server counted, in the text format of Prometheus.

Servers count in plain numbers (traffic.py, and their own). Only a scrape makes series of them, in a thread, so that
requests pay next to nothing for them. prometheus-client is imported by the first scrape.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from paceline.air.version import version
from paceline.web.problem import OPEN_CONNECTIONS, Problem
from paceline.web.traffic import Histogram, Traffic

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.metrics_core import GaugeMetricFamily
    from prometheus_client.registry import CollectorRegistry

Source: TypeAlias = "Callable[[], Iterable[Metric]]"
"""Gives series at a scrape, in whichever thread."""
PATH = "/metrics"
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Every version of Prometheus reads this one, whichever it would prefer."""


def metrics_route(traffic: Traffic, *sources: Source) -> Route:
    """The route of one server, with a registry of its own: what else is in this process does not show."""
    page = _Page(traffic, sources)

    async def metrics(request: Request) -> Response:
        connections = request.scope.get("extensions", {}).get(OPEN_CONNECTIONS)
        page.connections = None if connections is None else connections()
        try:
            content = await asyncio.to_thread(page.text)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("prometheus_client"):
                raise
            reason = "prometheus-client is not installed: run pip install 'paceline[serve]' and start the server again."
            problem = Problem(501, reason)
            return Response(problem.content(), problem.status, media_type="application/json")
        return Response(content, headers={"content-type": MEDIA_TYPE, "cache-control": "no-store"})

    return Route(PATH, metrics)


def counter(name: str, help_text: str, value: float) -> Metric:
    """A number that only grows."""
    from prometheus_client.metrics_core import CounterMetricFamily

    return CounterMetricFamily(name, help_text, value=value)


def gauge(name: str, help_text: str, value: float) -> Metric:
    """A number that goes up and down."""
    from prometheus_client.metrics_core import GaugeMetricFamily

    return GaugeMetricFamily(name, help_text, value=value)


def gauges(name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
    """The same for several things that labels tell apart; to be filled."""
    from prometheus_client.metrics_core import GaugeMetricFamily

    return GaugeMetricFamily(name, help_text, labels=labels)


def info(series: str, help_text: str, /, **labels: str) -> Metric:
    """Words about the server, as the labels of a series that is always 1."""
    family = gauges(series, help_text, *labels)
    family.add_metric([shown(text) for text in labels.values()], 1)
    return family


def histogram(name: str, help_text: str, values: Histogram) -> Metric:
    from prometheus_client.metrics_core import HistogramMetricFamily

    buckets, total = values.cumulative()
    return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=total)


LONGEST_LABEL = 200


def shown(text: str) -> str:
    """A label's value of any text: no control characters, of bounded length, and valid Unicode."""
    short = text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 3] + "..."
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in short)


class _Page:
    """One server's series."""

    def __init__(self, traffic: Traffic, sources: Iterable[Source]) -> None:
        self.connections: int | None = None
        """Those that were open when the scrape arrived; None: the server is not one of ours, and does not say."""
        self._traffic = traffic
        self._sources = tuple(sources)
        self._registry: CollectorRegistry | None = None
        self._scraping = threading.Lock()

    def text(self) -> bytes:
        """All series as they are now."""
        from prometheus_client.exposition import generate_latest

        with self._scraping:
            return generate_latest(self._known_registry())

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        yield info("paceline_info", "The version of paceline that serves.", version=version())
        yield from self._requests()
        if self.connections is not None:
            yield gauge("paceline_http_connections", "Open connections, idle ones too.", self.connections)
        for source in self._sources:
            yield from source()

    def _known_registry(self) -> CollectorRegistry:
        if self._registry is None:
            from prometheus_client import ProcessCollector
            from prometheus_client.registry import CollectorRegistry

            registry = CollectorRegistry(auto_describe=False)
            ProcessCollector(registry=registry)  # memory, processor time and open files of the server
            registry.register(self)
            self._registry = registry
        return self._registry

    def _requests(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

        requests = CounterMetricFamily(
            "paceline_http_requests", "Requests that were answered.", labels=["route", "method", "status"]
        )
        for (route, method, status), count in sorted(self._traffic.requests.copy().items()):
            requests.add_metric([route, method, str(status)], count)
        yield requests
        seconds = HistogramMetricFamily(
            "paceline_http_request_seconds", "From a request's headers to the start of its answer.", labels=["route"]
        )
        for route, values in sorted(self._traffic.seconds.copy().items()):
            seconds.add_metric([route], *values.cumulative())
        yield seconds
