"""The runs that every viewer is shown: a search of many short trials, and one run with many rows. The same numbers for
all viewers; each gets them in the form that it reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

METRICS = ("loss", "accuracy", "grad_norm", "lr")
SEARCH = "search"
LONG_RUN = "long-run"
ROWS_PER_TRIAL = 20
SECONDS_PER_ROW = 0.5
BEGAN = 1_760_000_000.0
"""When the search began; the long run begins an hour later."""


@dataclass(frozen=True)
class Trial:
    """One run of the search."""

    number: int
    params: dict[str, float | int]
    began: float
    values: NDArray[np.float64]
    """A row for each report, a column for each of METRICS."""


def trial(number: int) -> Trial:
    random = np.random.default_rng(number)
    params: dict[str, float | int] = {
        "lr": float(10 ** random.uniform(-4, -1)),
        "momentum": float(random.uniform(0, 1)),
        "layers": int(random.choice([1, 2, 4, 8])),
    }
    return Trial(number, params, BEGAN + number / 4, curves(ROWS_PER_TRIAL, random, float(params["lr"])))


def long_run(rows: int) -> NDArray[np.float64]:
    """The rows of the long run."""
    return curves(rows, np.random.default_rng(1 << 20), 0.001)


def curves(rows: int, random: np.random.Generator, rate: float) -> NDArray[np.float64]:
    """Values as a training gives them: falling and rising, with noise and a few outliers."""
    x = np.linspace(0, 1, rows)
    loss = 2 * np.exp(-5 * x) + 0.1 * random.standard_normal(rows) ** 2
    loss[random.random(rows) < 1e-4] += 5
    accuracy = np.clip(1 - loss / 3 + 0.02 * random.standard_normal(rows), 0, 1)
    grad_norm = np.exp(0.5 * random.standard_normal(rows)) * (1 + loss)
    return np.column_stack([loss, accuracy, grad_norm, rate * (1 + np.cos(np.pi * x)) / 2])
