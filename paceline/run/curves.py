"""The metrics of a run as small curves: few points, however many rows there are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

from paceline.air.constants import TRAINING_ITERATION
from paceline.air.metrics import flattened, number_in, reported

MOST_METRICS = 12
MOST_POINTS = 500
_COUNTERS = re.compile(r"(?:^|[/_ ])(epoch|step|iter|iteration|batch|time|lr|learning_rate|seed|rank|world_size)s?$")


class Curves:
    """Keeps every n-th row of a few metrics; n grows with the number of rows."""

    def __init__(self, favourite: str | None = None) -> None:
        """`favourite` is the metric that the user judges the run by, if they have said so."""
        self._favourite = favourite
        self._points: list[tuple[float, dict[str, float]]] = []
        self._every = 1
        self._rows = 0
        self._last: tuple[float, Mapping[str, Any]] = (0.0, {})

    def add(self, row: Mapping[str, Any]) -> None:
        """Called for every row, so that most of them are only counted."""
        iteration = number_in(row, TRAINING_ITERATION)
        if iteration <= self._last[0]:  # another attempt: these rows take the place of others
            self._points = [point for point in self._points if point[0] < iteration]
        self._last = (iteration, row)
        self._rows += 1
        if self._rows % self._every:
            return
        self._points.append((iteration, _numbers(row)))
        if len(self._points) > MOST_POINTS:
            self._points = self._points[::2]
            self._every *= 2

    def names(self) -> list[str]:
        """The metrics that are numbers, in the order of the last row."""
        return list(_numbers(self._last[1]))

    def main(self) -> str | None:
        """The metric that says most about the run: the user's choice, a loss, or the first that is not a counter."""
        names = self.names()
        if self._favourite in names:
            return self._favourite
        telling = [name for name in names if not _COUNTERS.search(name.lower())]
        losses = [name for name in telling if "loss" in name.lower()]
        return next(iter([*losses, *telling, *names]), None)

    def of(self, name: str) -> tuple[list[float | None], list[float]]:
        """The values of a metric, and the iterations that they were reported at."""
        points = list(self._points)
        if not points or points[-1][0] != self._last[0]:
            points.append((self._last[0], _numbers(self._last[1])))
        return [values.get(name) for _, values in points], [iteration for iteration, _ in points]


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    found = (
        (name, float(value))
        for name, value in flattened(reported(row)).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    )
    return dict(islice(found, MOST_METRICS))
