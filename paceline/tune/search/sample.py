"""The functions that write a search space: ``{"lr": tune.loguniform(1e-4, 1e-1), "layers": tune.choice([2, 3])}``.

Bounds: the upper one of `randint` and `lograndint` does not come out; quantised ranges have both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from paceline.air.absent import advise
from paceline.tune.search.domains import (
    Categorical,
    Domain,
    Function,
    Grid,
    LogUniform,
    Normal,
    Quantized,
    Sampler,
    Uniform,
    listed,
)
from paceline.tune.search.ranges import Float, Integer

__all__ = [
    "Categorical",
    "Domain",
    "Float",
    "Function",
    "Grid",
    "Integer",
    "LogUniform",
    "Normal",
    "Quantized",
    "Sampler",
    "Uniform",
    "choice",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "uniform",
]


def grid_search(values: Sequence[Any]) -> dict[str, list[Any]]:
    """Each of the values in turn; several grids are combined, each with each."""
    return {"grid_search": listed(values, "grid_search()")}


def choice(categories: Sequence[Any]) -> Categorical:
    """One of the categories, each as likely as the others."""
    return Categorical(tuple(listed(categories, "choice()")))


def uniform(lower: float, upper: float) -> Float:
    """A real number between the bounds."""
    return Float(lower, upper)


def quniform(lower: float, upper: float, q: float) -> Float:
    """A multiple of q from lower to upper."""
    return Float(lower, upper, Quantized(Uniform(), q))


def loguniform(lower: float, upper: float, base: float = 10) -> Float:
    """A real number between the bounds, every order of magnitude being equally likely."""
    return Float(lower, upper, LogUniform(base))


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Float:
    """A multiple of q from lower to upper, on a logarithmic scale."""
    return Float(lower, upper, Quantized(LogUniform(base), q))


def randn(mean: float = 0.0, sd: float = 1.0) -> Float:
    """A real number of the normal distribution."""
    return Float(-math.inf, math.inf, Normal(mean, sd))


def qrandn(mean: float, sd: float, q: float) -> Float:
    """A number of the normal distribution, rounded to a multiple of q."""
    return Float(-math.inf, math.inf, Quantized(Normal(mean, sd), q))


def randint(lower: int, upper: int) -> Integer:
    """A whole number from lower to upper - 1."""
    return Integer(lower, upper)


def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """A multiple of q from lower to upper."""
    return Integer(lower, upper, Quantized(Uniform(), q))


def lograndint(lower: int, upper: int, base: float = 10) -> Integer:
    """A whole number from lower to upper - 1, on a logarithmic scale."""
    return Integer(lower, upper, LogUniform(base))


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Integer:
    """A multiple of q from lower to upper, on a logarithmic scale."""
    return Integer(lower, upper, Quantized(LogUniform(base), q))


def sample_from(func: Callable[..., Any]) -> Function:
    """What ``func(spec)`` returns: `spec.config.lr` is the value that the parameter lr got in the same trial.

    It may return a domain, which is then drawn from. Random numbers that the function
    draws itself do not follow the seed of the search.
    """
    return Function(func)


advise(__name__, {"BaseSampler": "derive from Sampler"})
