"""How values are drawn: a sampler turns random numbers into numbers of a range."""

from __future__ import annotations

import math
import random
import sys
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from paceline.air.errors import ConfigError


def generator(random_state: Any = None) -> random.Random:
    """The source of random numbers that `random_state` stands for: a seed, or a generator that is moved on.

    None follows the global ones: see `seed_of_program`.
    """
    if isinstance(random_state, random.Random):
        return random_state
    if random_state is None:
        return random.Random(seed_of_program())
    if isinstance(random_state, int | Integral):
        return random.Random(int(random_state))
    for method in ("integers", "randint"):  # numpy's Generator and RandomState, without loading numpy
        if callable(getattr(random_state, method, None)):
            return random.Random(int(getattr(random_state, method)(2**31 - 1)))
    raise ConfigError(
        f"random_state is {random_state!r}: give a whole number, a random.Random, a numpy generator, or None."
    )


def seed_of_program() -> int:
    """A new seed, drawn from the global generator that the program has seeded: that of numpy if np.random.seed() was
    called, else that of `random`. Without a seed of its own that one differs from run to run."""
    numpy_random = sys.modules.get("numpy.random")  # a program that has not loaded it has not seeded it
    if numpy_random is not None and numpy_random.get_bit_generator().seed_seq is None:  # so after np.random.seed()
        return int(numpy_random.randint(0, 2**63 - 1, dtype="int64"))
    return random.getrandbits(63)


class Sampler:
    """How values are drawn from a domain."""

    def real(self, lower: float, upper: float, rng: random.Random) -> float:
        """A real number from lower to upper."""
        raise NotImplementedError


@dataclass(frozen=True)
class Uniform(Sampler):
    """Every value is equally likely."""

    def real(self, lower: float, upper: float, rng: random.Random) -> float:
        share = rng.random()
        return lower * (1 - share) + upper * share  # upper - lower could overflow


@dataclass(frozen=True)
class LogUniform(Sampler):
    """Every order of magnitude is equally likely. That is so whatever the base: it is only a way to write it."""

    base: float = 10

    def __post_init__(self) -> None:
        if real_number(self.base, "base") <= 1:
            raise ConfigError(f"base is {self.base!r}: give a number above 1; 10 is usual.")

    def real(self, lower: float, upper: float, rng: random.Random) -> float:
        share = rng.random()
        return math.exp(math.log(lower) * (1 - share) + math.log(upper) * share)


@dataclass(frozen=True)
class Normal(Sampler):
    """A bell curve."""

    mean: float = 0.0
    sd: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", real_number(self.mean, "mean"))
        object.__setattr__(self, "sd", real_number(self.sd, "sd"))
        if self.sd <= 0:
            raise ConfigError(f"sd is {self.sd!r}: a standard deviation is above 0. For one value, write the value.")

    def real(self, lower: float, upper: float, rng: random.Random) -> float:
        return rng.normalvariate(self.mean, self.sd)


@dataclass(frozen=True)
class Quantized(Sampler):
    """Multiples of q. Each is as likely as the range of q around it is with the inner sampler."""

    inner: Sampler
    q: float
    digits: int = field(init=False, repr=False, compare=False)
    """Decimal places of q: products are rounded to them, so that 3 x 0.1 is 0.3."""

    def __post_init__(self) -> None:
        if real_number(self.q, "q") <= 0:
            raise ConfigError(f"q is {self.q!r}: values are rounded to multiples of it, so give a number above 0.")
        exponent = Decimal(repr(float(self.q))).as_tuple().exponent
        object.__setattr__(self, "digits", max(0, -int(exponent)))

    def real(self, lower: float, upper: float, rng: random.Random) -> float:
        return self.inner.real(lower - self.q / 2, upper + self.q / 2, rng)


@dataclass(frozen=True)
class Grid(Sampler):
    """One after the other instead of by chance."""


def real_number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        text = " Convert text with float()." if isinstance(value, str) else ""
        raise ConfigError(f"{name} is {value!r}: give a number.{text}")
    if not math.isfinite(value):
        raise ConfigError(f"{name} is {value!r}: give a finite number, or use randn(mean, sd).")
    return float(value)


def whole_value(value: Any, name: str) -> int:
    real_number(value, name)
    if value != int(value):
        raise ConfigError(f"{name} is {value!r}: give a whole number, or use the function for real numbers.")
    return int(value)
