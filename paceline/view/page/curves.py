"""The curves that pages ask for: whole ones, decimated to the pixels they are drawn on, and what is new in them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from paceline.storage.run_dir import resolve_storage
from paceline.view.decimate import m4
from paceline.view.series import RunSeries

Floats = NDArray[np.float64]
Axis = Literal["step", "time", "relative"]

MOST_BYTES = 160 << 20
"""Of all curves in memory together."""
MOST_NEW_ROWS = 5_000
"""In one event. A page that has missed more of them asks for the curve again, which is decimated."""
_LOCAL_SECONDS, _REMOTE_SECONDS = 0.1, 5.0
"""A journal is not looked at more often than that, however many tabs show it."""
_GENERATION = 1 << 40


class Curve(Struct):
    """The points of one metric."""

    x: list[float]
    y: list[float]
    """What is not finite becomes null in JSON."""
    smooth: list[float] | None
    complete: bool = False
    """All points that there are; otherwise the ones that matter for the pixels."""


class Curves(Struct):
    """The answer to a request for curves."""

    run: str
    cursor: int
    rows: int
    series: dict[str, Curve]
    x_min: float | None = None
    x_max: float | None = None


class CurveStore:
    """The series of runs that somebody looks at. The ones that nobody has looked at for longest go first."""

    def __init__(self, filesystem: Any = None) -> None:
        self._filesystem = filesystem
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, place: str) -> RunSeries:
        """The series of the run at a place, as of now or a moment ago."""
        with self._lock:
            kept = self._kept.get(place)
            if kept is None:
                kept = self._kept[place] = _Kept(place, self._filesystem)
            self._kept.move_to_end(place)
        kept.refresh()
        self._make_room(place)
        return kept.series

    def forget(self, place: str) -> None:
        with self._lock:
            self._kept.pop(place, None)

    def _make_room(self, in_use: str) -> None:
        with self._lock:
            total = sum(kept.series.nbytes for kept in self._kept.values())
            while total > MOST_BYTES and (oldest := next(iter(self._kept))) != in_use:
                total -= self._kept.pop(oldest).series.nbytes


class _Kept:
    def __init__(self, place: str, filesystem: Any) -> None:
        self.series = RunSeries(place, filesystem)
        self._seconds = _REMOTE_SECONDS if isinstance(resolve_storage(place), str) else _LOCAL_SECONDS
        self._lock = threading.Lock()
        self._refreshed = 0.0

    def refresh(self) -> None:
        with self._lock:
            if time.monotonic() - self._refreshed >= self._seconds:
                self.series.refresh()
                self._refreshed = time.monotonic()


def cursor_of(series: RunSeries) -> int:
    """Where to go on. It grows with the rows, and by more when rows were superseded."""
    return series.generation * _GENERATION + series.rows


def curves(
    run: str,
    series: RunSeries,
    metrics: Sequence[str],
    axis: Axis,
    *,
    pixels: int,
    smooth: float = 0.0,
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
) -> Curves:
    """Metrics that the run does not have are left out."""
    with series.reading():
        x = _axis(series, axis)
        known = set(series.metrics())
        found = {
            name: _curve(x, series, name, pixels=pixels, smooth=smooth, low=low, high=high, log=log)
            for name in metrics
            if name in known
        }
        ends = (float(x.min()), float(x.max())) if x.size else (None, None)
        return Curves(run, cursor_of(series), series.rows, found, *ends)


def _curve(
    x: Floats,
    series: RunSeries,
    name: str,
    *,
    pixels: int,
    smooth: float,
    low: float | None,
    high: float | None,
    log: bool,
) -> Curve:
    y = series.column(name)
    smoothed = series.smoothed(name, smooth) if smooth else None
    reported = np.flatnonzero(~np.isnan(y))
    if low is None and high is None and reported.size <= 4 * pixels:
        return _picked(x, y, smoothed, reported, complete=True)
    kept = m4(x, y, pixels, low, high, log=log)
    if smoothed is not None and kept.size > 2 * pixels:
        kept = np.union1d(kept, m4(x, smoothed, pixels, low, high, log=log))
    return _picked(x, y, smoothed, kept, complete=False)


def new_rows(
    run: str, series: RunSeries, metrics: Sequence[str], axis: Axis, smooth: float, cursor: int
) -> Curves | None:
    """What came after a cursor; None if the page has to ask for the whole curve again."""
    with series.reading():
        rows = series.rows
        generation, known = divmod(cursor, _GENERATION)
        if generation != series.generation or not 0 <= rows - known <= MOST_NEW_ROWS:
            return None
        x = _axis(series, axis)
        found: dict[str, Curve] = {}
        for name in series.metrics() if known < rows else ():
            if name in metrics:
                y = series.column(name)
                places = known + np.flatnonzero(~np.isnan(y[known:]))
                if places.size:
                    smoothed = series.smoothed(name, smooth) if smooth else None
                    found[name] = _picked(x, y, smoothed, places, complete=True)
        return Curves(run, cursor_of(series), rows, found)


def spark(series: RunSeries, metric: str, points: int) -> tuple[list[float], list[float]] | None:
    """A small curve for the list, with its smallest and its largest value; None without the metric."""
    with series.reading():
        if metric not in series.metrics():
            return None
        x, y = series.steps(), series.column(metric)
        kept = m4(x, y, max(points // 4, 1))
        return x[kept].tolist(), y[kept].tolist()


def _axis(series: RunSeries, axis: Axis) -> Floats:
    if axis == "step":
        return series.steps()
    return series.times() if axis == "time" else series.elapsed()


def _picked(x: Floats, y: Floats, smoothed: Floats | None, places: NDArray[np.intp], *, complete: bool) -> Curve:
    smooth = None if smoothed is None else smoothed[places].tolist()
    return Curve(x[places].tolist(), y[places].tolist(), smooth, complete)
