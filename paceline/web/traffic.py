"""What a server counts while it answers. Plain numbers: nothing here knows who reads them, or in which format.

The event loop counts; other threads may read. A reader can see a number that is one request behind another.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from starlette.routing import BaseRoute, Route

from paceline.web.problem import Send

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Between these the times of answers are told apart."""
METHODS = frozenset(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
OTHER = "other"
"""Stands for every path that is not a route: clients could invent paths without end."""


class Histogram:
    """How many values lie between which bounds."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """For each bound the number of values up to it, and the sum of all values."""
        total, counts = self._total, self._counts.copy()
        rows: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*map(repr, self._bounds), "+Inf"), counts, strict=True):
            below += count
            rows.append((bound, below))
        return rows, total


class Traffic:
    """Requests by route, method and status, and how long their answers took to begin."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, int], int] = {}
        self.seconds: dict[str, Histogram] = {}
        self._plain: frozenset[str] = frozenset()
        self._templates: list[tuple[re.Pattern[str], str]] = []

    def know(self, routes: Iterable[BaseRoute]) -> None:
        """These are the routes; all other paths are counted as one."""
        known = [route for route in routes if isinstance(route, Route)]
        self._plain = frozenset(route.path for route in known if "{" not in route.path)
        self._templates = [(route.path_regex, route.path) for route in known if "{" in route.path]

    def counted(self, scope: dict[str, Any], send: Send) -> Send:
        """`send`, which counts the request when its answer begins. A stream of events counts as soon as it begins."""
        if scope["type"] != "http":
            return send
        began = time.perf_counter()

        def counting_send(message: dict[str, Any]) -> Awaitable[None]:  # not a coroutine of its own, which takes time
            if message["type"] == "http.response.start":
                self._count(scope, message["status"], time.perf_counter() - began)
            return send(message)

        return counting_send

    def _count(self, scope: dict[str, Any], status: int, seconds: float) -> None:
        path, method = scope["path"], scope["method"]
        if path not in self._plain:
            path = next((template for pattern, template in self._templates if pattern.match(path)), OTHER)
        key = (path, method if method in METHODS else OTHER, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        if path not in self.seconds:
            self.seconds[path] = Histogram(SECONDS)
        self.seconds[path].observe(seconds)
