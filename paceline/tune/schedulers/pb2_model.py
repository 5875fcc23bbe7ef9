"""Which point to try next: a Gaussian process over time and parameters, and its upper confidence bound.

The process models how much a population member gains in one interval. Correlation falls
with distance in time (what was good early need not be good late) and in parameters.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from threadpoolctl import threadpool_limits

NEWEST = 100
"""So many observations are fitted: the work grows with the cube of their number, and old ones say little."""
CANDIDATES = 500
CLIMBS = 3
FAR = 1e6
"""A length scale at which a column, all of which lie about in [0, 1], plays no role."""


class Gain(NamedTuple):
    """What one interval of training brought."""

    time: float
    before: float
    """The score at its start."""
    point: tuple[float, ...]
    """The parameters, each from 0 to 1 within its bounds."""
    gain: float
    """Of score per unit of time."""


def next_point(
    observations: Sequence[Gain],
    *,
    time: float,
    before: float,
    pending: Sequence[Sequence[float]],
    rng: random.Random,
) -> list[float]:
    """The parameters that promise most for a member that is at this time and score.

    `pending` are points that others try at the moment: their gain is not known, but
    trying them again would teach little.
    """
    newest = list(observations)[-NEWEST:]
    inputs = np.array([[each.time, each.before, *each.point] for each in newest])
    gains = _standardised(np.array([each.gain for each in newest]))
    here = np.array([time, before])
    low, high = np.minimum(inputs[:, :2].min(axis=0), here), np.maximum(inputs[:, :2].max(axis=0), here)
    width = np.where(high > low, high - low, 1.0)
    inputs[:, :2] = (inputs[:, :2] - low) / width
    here = (here - low) / width

    with threadpool_limits(1):  # threads that meet at each small matrix make it ten times as slow
        process = _fitted(inputs, gains)
        if pending:
            guessed = np.array([[*here, *point] for point in pending])
            # At its own mean a guess leaves the mean as it is and takes the uncertainty away.
            inputs, gains = np.vstack([inputs, guessed]), np.concatenate([gains, process.predict(guessed)])
            process = GaussianProcessRegressor(kernel=process.kernel_, optimizer=None).fit(inputs, gains)
        return _highest_bound(process, here, dimensions=len(newest[0].point), count=len(newest), rng=rng)


def _standardised(values: Any) -> Any:
    spread = values.std()
    return (values - values.mean()) / (spread if spread > 0 else 1.0)


def _fitted(inputs: Any, gains: Any) -> Any:
    others = inputs.shape[1] - 1
    fixed = (FAR, FAR)
    over_time = Matern(
        length_scale=[1.0] + [FAR] * others, length_scale_bounds=[(0.1, 100.0)] + [fixed] * others, nu=0.5
    )
    over_points = RBF(length_scale=[FAR] + [0.5] * others, length_scale_bounds=[fixed] + [(0.05, 10.0)] * others)
    kernel = ConstantKernel(1.0, (0.05, 20.0)) * over_time * over_points + WhiteKernel(0.1, (1e-4, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of length scales at their bounds, which is fine
        return GaussianProcessRegressor(kernel=kernel).fit(inputs, gains)


def _highest_bound(process: Any, here: Any, *, dimensions: int, count: int, rng: random.Random) -> list[float]:
    optimism = math.sqrt(0.2 * dimensions * math.log(2 * dimensions * count + 1))

    def bound(points: Any) -> Any:
        mean, deviation = process.predict(np.hstack([np.tile(here, (len(points), 1)), points]), return_std=True)
        return mean + optimism * deviation

    candidates = np.random.default_rng(rng.getrandbits(31)).random((CANDIDATES, dimensions))
    starts = candidates[np.argsort(bound(candidates))[-CLIMBS:]]
    climbs = [
        minimize(lambda point: -bound(point[None, :])[0], start, bounds=[(0.0, 1.0)] * dimensions, method="L-BFGS-B")
        for start in starts
    ]
    best = min(climbs, key=lambda climb: float(climb.fun))
    return [float(value) for value in np.clip(best.x, 0.0, 1.0)]
