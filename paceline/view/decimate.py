"""Long curves made short enough to draw: M4 keeps what a pixel shows, and a debiased average smooths.

M4 (Jugel et al., 2014) keeps the first, last, smallest and largest point of every pixel column. A line through these
covers the same pixels as a line through all points. Smoothing comes first: a curve that is decimated and then smoothed
looks different at every zoom.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_BLOCK = 128
"""Values that are smoothed by one row of a matrix product. Larger blocks multiply more, smaller ones loop more."""


def m4(
    x: Floats, y: Floats, pixels: int, x_min: float | None = None, x_max: float | None = None, *, log: bool = False
) -> NDArray[np.intp]:
    """The indices of the points to draw, ascending: at most four for each of `pixels` columns.

    Points whose x or y is not finite are left out, and so are those outside of [x_min, x_max], except for the nearest
    one on either side, which the line leads to. `log` means that the columns are of equal width on a logarithmic axis;
    points with x <= 0 are left out then. If x goes backwards somewhere, the points are ordered by it first.
    """
    usable = np.isfinite(x) & np.isfinite(y)
    if log:
        usable &= x > 0
    kept = np.flatnonzero(usable)
    at = x[kept]
    if at.size > 1 and (np.diff(at) < 0).any():
        order = np.argsort(at, kind="stable")
        kept, at = kept[order], at[order]
    first = 0 if x_min is None else int(np.searchsorted(at, x_min, "left"))
    behind = at.size if x_max is None else int(np.searchsorted(at, x_max, "right"))
    around = slice(max(first - 1, 0), behind + 1)
    if behind - first <= 4 * pixels:
        return kept[around]
    low = at[first] if x_min is None else x_min
    high = at[behind - 1] if x_max is None else x_max
    inside = at[first:behind]
    if log:
        low, high, inside = np.log(low if low > 0 else at[first]), np.log(high), np.log(inside)
    drawn = first + _extremes(_columns(inside, float(low), float(high), pixels), y[kept[first:behind]])
    places: NDArray[np.intp] = np.unique(np.concatenate([[around.start], drawn, [min(behind, at.size - 1)]]))
    return kept[places]


def _columns(at: Floats, low: float, high: float, pixels: int) -> NDArray[np.intp]:
    """The pixel column of each point."""
    if high <= low:
        return np.zeros(at.size, np.intp)
    half = (high / 2 - low / 2) / pixels  # halves, because the difference of two large numbers may overflow
    return np.minimum((at / 2 - low / 2) / half, pixels - 1).astype(np.intp)


def _extremes(columns: NDArray[np.intp], y: Floats) -> NDArray[np.intp]:
    """The positions of the first, last, smallest and largest value of each column."""
    starts = np.flatnonzero(np.diff(columns, prepend=-1))
    lengths = np.diff(starts, append=columns.size)
    found = [starts, starts + lengths - 1]
    for smallest_or_largest in (np.minimum, np.maximum):
        matches = np.flatnonzero(y == np.repeat(smallest_or_largest.reduceat(y, starts), lengths))
        of_column = columns[matches]
        found.append(matches[np.flatnonzero(np.diff(of_column, prepend=-1))])  # several may be equal: the first
    return np.unique(np.concatenate(found))


class Smoothing:
    """An exponential moving average that can be continued. `weight` is that of the past, from 0 to less than 1.

    Without a correction, an average that begins at 0 would pull the first values towards 0; it is divided by the sum of
    the weights so far. Values that are not finite are skipped: they stay NaN, and the average goes on behind them.
    """

    def __init__(self, weight: float) -> None:
        if not 0 <= weight < 1:
            raise ValueError(f"weight is {weight!r}: it must be at least 0 and less than 1.")
        self.weight = weight
        self._average = 0.0
        self._count = 0

    def extend(self, y: Floats) -> Floats:
        """The smoothed values of `y`, which comes after what was given before."""
        result = np.full(y.size, np.nan)
        finite = np.flatnonzero(np.isfinite(y))
        if not finite.size:
            return result
        values = y[finite]
        if self.weight == 0:
            result[finite] = values
            return result
        averages = _averages(values, self.weight, self._average)
        counts = np.arange(self._count + 1, self._count + 1 + values.size, dtype=np.float64)
        self._average = float(averages[-1])
        self._count += values.size
        result[finite] = averages / -np.expm1(counts * np.log(self.weight))
        return result


def ema(y: Floats, weight: float) -> Floats:
    """The debiased exponential moving average of a series."""
    return Smoothing(weight).extend(np.asarray(y, np.float64))


def _averages(values: Floats, weight: float, before: float) -> Floats:
    """a[i] = weight * a[i - 1] + (1 - weight) * values[i], with a[-1] = before.

    Within a block this is a product with a triangular matrix; only the last value of each block needs a loop.
    """
    blocks = -(-values.size // _BLOCK)
    padded = np.zeros(blocks * _BLOCK)
    padded[: values.size] = values
    powers = weight ** np.arange(_BLOCK + 1)
    distance = np.subtract.outer(np.arange(_BLOCK), np.arange(_BLOCK))
    matrix = np.where(distance >= 0, (1 - weight) * powers[np.abs(distance)], 0.0)
    averages: Floats = padded.reshape(blocks, _BLOCK) @ matrix.T
    carried = np.empty(blocks)
    for block, last in enumerate(averages[:, -1].tolist()):
        carried[block] = before
        before = last + powers[_BLOCK] * before
    averages += np.outer(carried, powers[1:])
    return averages.reshape(-1)[: values.size]
