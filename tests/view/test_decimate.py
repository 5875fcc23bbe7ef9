"""M4 and smoothing, compared with plain loops over random data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paceline.view.decimate import Smoothing, ema, m4


def plain_ema(values: list[float], weight: float) -> list[float]:
    average, sum_of_weights, smoothed = 0.0, 0.0, []
    for value in values:
        if not math.isfinite(value):
            smoothed.append(math.nan)
            continue
        average = weight * average + (1 - weight) * value
        sum_of_weights = weight * sum_of_weights + (1 - weight)
        smoothed.append(average / sum_of_weights)
    return smoothed


def plain_m4(x: Any, y: Any, pixels: int) -> set[int]:
    """For x that ascends, and all of it in view."""
    points = [i for i in range(len(x)) if math.isfinite(x[i]) and math.isfinite(y[i])]
    if len(points) <= 4 * pixels:
        return set(points)
    low, high = x[points[0]], x[points[-1]]
    columns: dict[int, list[int]] = {}
    for i in points:
        column = 0 if high <= low else min(int((x[i] / 2 - low / 2) / ((high / 2 - low / 2) / pixels)), pixels - 1)
        columns.setdefault(column, []).append(i)
    kept: set[int] = set()
    for members in columns.values():
        kept |= {members[0], members[-1], min(members, key=lambda i: y[i]), max(members, key=lambda i: y[i])}
    return kept


def random_series(random: np.random.Generator) -> tuple[Any, Any]:
    """Steps with gaps and repetitions; values with ties, gaps and huge numbers."""
    size = int(random.integers(0, 800))
    x = np.cumsum(random.choice([0.0, 1.0, 1.0, 7.5], size)) * float(random.choice([1.0, 1e-9, 1e200]))
    y = random.choice([random.normal(size=size), random.integers(0, 3, size).astype(float)])
    if size:
        y[random.random(size) < random.choice([0.0, 0.1, 0.9])] = random.choice([np.nan, np.inf, -np.inf])
        if random.random() < 0.2:
            y = y * 1e307
    return x, y


@pytest.mark.parametrize("seed", range(100))
def test_m4_keeps_what_each_column_shows(seed: int) -> None:
    random = np.random.default_rng(seed)
    x, y = random_series(random)
    pixels = int(random.integers(1, 60))
    kept = m4(x, y, pixels)
    assert set(kept.tolist()) == plain_m4(x, y, pixels)
    assert (np.diff(kept) > 0).all()


@pytest.mark.parametrize("seed", range(30))
def test_a_range_keeps_one_point_beyond_each_end(seed: int) -> None:
    random = np.random.default_rng(seed)
    x = np.sort(random.random(2000))
    y = random.normal(size=2000)
    low, high = np.sort(random.random(2))
    kept = x[m4(x, y, 20, low, high)]
    inside = x[(x >= low) & (x <= high)]
    assert (kept < low).sum() == min((x < low).sum(), 1)
    assert (kept > high).sum() == min((x > high).sum(), 1)
    if inside.size:
        assert {inside.min(), inside.max()} <= set(kept.tolist())


def test_few_points_are_all_kept() -> None:
    x = np.arange(40.0)
    assert m4(x, x, 10).tolist() == list(range(40))
    assert m4(x, x, 10, 100.0, 200.0).tolist() == [39]  # the line comes from there
    assert m4(np.empty(0), np.empty(0), 10).tolist() == []
    assert m4(x, np.full(40, np.nan), 10).tolist() == []


def test_columns_of_a_logarithmic_axis() -> None:
    x = np.arange(0.0, 100_000.0)
    y = np.random.default_rng(1).normal(size=x.size)
    kept = x[m4(x, y, 100, log=True)]
    assert kept[0] == 1.0  # 0 has no place on such an axis
    decades = [((kept >= 10**e) & (kept < 10 ** (e + 1))).sum() for e in (2, 3, 4)]
    assert max(decades) <= 1.2 * min(decades)  # equally wide, equally many points


def test_a_clock_that_went_backwards() -> None:
    x = np.array([0.0, 1, 2, 1.5, 3])
    assert m4(x, x, 10).tolist() == [0, 1, 3, 2, 4]


def test_all_points_at_one_x() -> None:
    y = np.random.default_rng(2).normal(size=100)
    assert set(m4(np.ones(100), y, 5).tolist()) == {0, 99, int(y.argmin()), int(y.argmax())}


@pytest.mark.parametrize("seed", range(60))
def test_smoothing(seed: int) -> None:
    random = np.random.default_rng(seed)
    _, y = random_series(random)
    weight = float(random.choice([0.0, 1e-9, 0.3, 0.6, 0.99, 0.999999, random.random()]))
    with np.errstate(over="raise", invalid="raise"):
        smoothed = ema(y, weight)
    np.testing.assert_allclose(smoothed, plain_ema(y.tolist(), weight), rtol=1e-9, atol=1e-12 * _scale(y))


@pytest.mark.parametrize("seed", range(20))
def test_smoothing_goes_on_where_it_ended(seed: int) -> None:
    random = np.random.default_rng(seed)
    _, y = random_series(random)
    cuts = np.sort(random.integers(0, y.size + 1, 4))
    smoothing = Smoothing(0.9)
    parts = [smoothing.extend(part) for part in np.split(y, cuts)]
    np.testing.assert_allclose(np.concatenate(parts), ema(y, 0.9), rtol=1e-9, atol=1e-12 * _scale(y))


def _scale(y: Any) -> float:
    finite = y[np.isfinite(y)]
    return float(np.abs(finite).max()) if finite.size else 1.0


@pytest.mark.parametrize("weight", [-0.1, 1.0, math.nan])
def test_a_weight_that_cannot_be(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        ema(np.zeros(3), weight)
