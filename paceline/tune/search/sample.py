"""The functions that write a search space: ``{"lr": tune.loguniform(1e-4, 1e-1), "layers": tune.choice([2, 3])}``.

Bounds: the upper one of `randint` and `lograndint` does not come out; quantised ranges have both.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

from paceline.air.absent import advise
from paceline.air.errors import ConfigError
from paceline.tune.search.domains import (
    Call,
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
    real_number,
    whole_value,
)

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


@dataclass(frozen=True, repr=False)
class _Range(Domain):
    """Numbers between two bounds."""

    lower: Any
    upper: Any
    sampler: Sampler = field(default_factory=Uniform)

    @property
    def q(self) -> Any:
        """The step of a quantised range, else None."""
        return self.sampler.q if isinstance(self.sampler, Quantized) else None

    @property
    def is_log(self) -> bool:
        return isinstance(self._unquantized, LogUniform)

    @property
    def _unquantized(self) -> Sampler:
        return self.sampler.inner if isinstance(self.sampler, Quantized) else self.sampler

    def _check_log(self) -> None:
        if self.is_log and self.lower <= 0:
            raise ConfigError(
                f"lower is {self.lower!r}: on a logarithmic scale it must be above 0. Use a small number such as "
                "1e-6 (or 1 for whole numbers), or the function without log."
            )

    def _with_log_suffix(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        inner = self._unquantized
        return (*arguments, inner.base) if isinstance(inner, LogUniform) and inner.base != 10 else arguments


@dataclass(frozen=True, repr=False)
class Float(_Range):
    """Real numbers from lower to upper, or, for a normal distribution, any."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if isinstance(self._unquantized, Normal):
            if (self.lower, self.upper) != (-math.inf, math.inf):
                raise ConfigError("A normal distribution has no bounds: use randn(mean, sd) or qrandn(mean, sd, q).")
            return
        object.__setattr__(self, "lower", real_number(self.lower, "lower"))
        object.__setattr__(self, "upper", real_number(self.upper, "upper"))
        _check_order(self.lower, self.upper)
        self._check_log()
        if isinstance(self.sampler, Quantized):
            for name, bound in (("lower", self.lower), ("upper", self.upper)):
                steps = bound / self.q
                if not math.isclose(steps, round(steps), rel_tol=1e-9, abs_tol=1e-9):
                    raise ConfigError(
                        f"{name} is {bound!r}, which is not a multiple of q={self.q!r}. "
                        f"The nearest multiple is {self._nearest(bound)!r}."
                    )

    def uniform(self) -> Float:
        return replace(self, sampler=Uniform())

    def loguniform(self, base: float = 10) -> Float:
        return replace(self, sampler=LogUniform(base))

    def normal(self, mean: float = 0.0, sd: float = 1.0) -> Float:
        return replace(self, sampler=Normal(mean, sd))

    def quantized(self, q: float) -> Float:
        return replace(self, sampler=Quantized(self._unquantized, q))

    def draw(self, rng: random.Random, spec: Any = None) -> float:
        value = self.sampler.real(self.lower, self.upper, rng)
        if isinstance(self.sampler, Quantized):
            value = self._nearest(value)
        return min(max(value, self.lower), self.upper)

    def is_valid(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, Real) or not self.lower <= float(value) <= self.upper:
            return False
        return self.q is None or math.isclose(self._nearest(float(value)), float(value), rel_tol=1e-9, abs_tol=1e-12)

    def cast(self, value: Any) -> float:
        return float(value) if self.q is None else min(max(self._nearest(float(value)), self.lower), self.upper)

    def _nearest(self, value: float) -> float:
        assert isinstance(self.sampler, Quantized)
        return round(round(value / self.sampler.q) * self.sampler.q, self.sampler.digits)

    def as_call(self) -> Call:
        inner, step = self._unquantized, () if self.q is None else (self.q,)
        quantized = "q" if step else ""
        if isinstance(inner, Normal):
            return f"{quantized}randn", (inner.mean, inner.sd, *step)
        name = "loguniform" if self.is_log else "uniform"
        return quantized + name, self._with_log_suffix((self.lower, self.upper, *step))


@dataclass(frozen=True, repr=False)
class Integer(_Range):
    """Whole numbers from lower to below upper. Of a quantised range both bounds belong to it and are multiples of q."""

    lower: int
    upper: int

    def __post_init__(self) -> None:
        lower, upper = whole_value(self.lower, "lower"), whole_value(self.upper, "upper")
        if isinstance(self.sampler, Quantized):
            q = whole_value(self.sampler.q, "q")
            object.__setattr__(self, "sampler", Quantized(self.sampler.inner, q))  # 2.0 would make floats
            lower, upper, asked = -(-lower // q) * q, upper // q * q, (lower, upper)
            if asked[0] > asked[1]:
                _check_order(*asked)
            if lower > upper:
                raise ConfigError(f"q is {q}, and no multiple of it lies between {asked[0]} and {asked[1]}.")
        else:
            _check_order(lower, upper)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        self._check_log()

    @property
    def largest(self) -> int:
        """The largest number that can come out."""
        return self.upper if self.q is not None else self.upper - 1

    def uniform(self) -> Integer:
        return replace(self, sampler=Uniform())

    def loguniform(self, base: float = 10) -> Integer:
        return replace(self, sampler=LogUniform(base))

    def quantized(self, q: int) -> Integer:
        return replace(self, sampler=Quantized(self._unquantized, whole_value(q, "q")))

    def draw(self, rng: random.Random, spec: Any = None) -> int:
        step = self.q or 1
        if not self.is_log:
            return self.lower + step * rng.randrange((self.largest - self.lower) // step + 1)
        value = self.sampler.real(self.lower, self.upper, rng)
        return self.cast(value) if self.q else min(max(math.floor(value), self.lower), self.largest)

    def is_valid(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral):
            return False
        return self.lower <= int(value) <= self.largest and int(value) % (self.q or 1) == 0

    def cast(self, value: Any) -> int:
        return int(value) if self.q is None else min(max(round(value / self.q) * self.q, self.lower), self.upper)

    def as_call(self) -> Call:
        step = () if self.q is None else (self.q,)
        name = "lograndint" if self.is_log else "randint"
        return ("q" if step else "") + name, self._with_log_suffix((self.lower, self.upper, *step))


def _check_order(lower: float, upper: float) -> None:
    if lower > upper:
        raise ConfigError(f"lower is {lower!r} and upper is {upper!r}: swap them.")
    if lower == upper:
        raise ConfigError(f"lower and upper are both {lower!r}: for one value, write the value itself.")


advise(__name__, {"BaseSampler": "derive from Sampler"})
