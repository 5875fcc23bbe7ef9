"""What a parameter may be: a domain, and the sampler that says how values are drawn from it.

Those of numbers are in `ranges`. All are immutable values: equal if they mean the same, and shown as the call that
makes them.
"""

from __future__ import annotations

import inspect
import math
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from paceline.air.errors import ConfigError

Call = tuple[str, tuple[Any, ...]]


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


@dataclass(frozen=True, repr=False)
class Domain(ABC):
    """A set of values that a parameter may have."""

    @abstractmethod
    def draw(self, rng: random.Random, spec: Any = None) -> Any:
        """One value."""

    @abstractmethod
    def is_valid(self, value: Any) -> bool:
        """Whether a value belongs to the domain."""

    @abstractmethod
    def as_call(self) -> Call:
        """The public function that makes this domain, and its arguments."""

    def sample(self, spec: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """One value, or a list of `size` values. `spec`: the parameters so far, for functions of them."""
        rng = generator(random_state)
        if size == 1:
            return self.draw(rng, spec)
        return [self.draw(rng, spec) for _ in range(size)]

    def cast(self, value: Any) -> Any:
        """The value in the type of the domain; for a quantised one, the nearest it has."""
        return value

    @property
    def domain_str(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        name, arguments = self.as_call()
        return f"{name}({', '.join(repr(each) for each in arguments)})"


@dataclass(frozen=True, repr=False)
class Categorical(Domain):
    """One of several values of any kind."""

    categories: tuple[Any, ...]
    sampler: Sampler = field(default_factory=Uniform)

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", tuple(listed(self.categories, "choice()")))

    def __len__(self) -> int:
        return len(self.categories)

    def uniform(self) -> Categorical:
        return replace(self, sampler=Uniform())

    def grid(self) -> Categorical:
        return replace(self, sampler=Grid())

    def draw(self, rng: random.Random, spec: Any = None) -> Any:
        return self.categories[rng.randrange(len(self.categories))]

    def is_valid(self, value: Any) -> bool:
        return index_of(value, self.categories) is not None

    def as_call(self) -> Call:
        return "grid_search" if isinstance(self.sampler, Grid) else "choice", (list(self.categories),)


@dataclass(frozen=True, repr=False)
class Function(Domain):
    """A value that a function works out, maybe from other parameters."""

    func: Callable[..., Any]
    _takes_spec: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.func):
            raise ConfigError(f"sample_from() takes a function of the other parameters, not {self.func!r}.")
        object.__setattr__(self, "_takes_spec", _takes_an_argument(self.func))

    def draw(self, rng: random.Random, spec: Any = None) -> Any:
        """What the function returns; if that is a domain, a value of it: so the range can depend on others."""
        value = self.func(spec) if self._takes_spec else self.func()
        return value.draw(rng, spec) if isinstance(value, Domain) else value

    def is_valid(self, value: Any) -> bool:
        return True

    def as_call(self) -> Call:
        return "sample_from", (self.func,)


# Checks of what users write


def listed(values: Any, where: str) -> list[Any]:
    """The options as a list, in their order."""
    if callable(getattr(values, "tolist", None)):
        values = values.tolist()  # a numpy array or a pandas series: its numbers as plain ones
    if isinstance(values, set | frozenset):
        raise ConfigError(f"{where} got a set, whose order changes from run to run: give a list, e.g. sorted(values).")
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise ConfigError(f"{where} takes a list of values, not {values!r}. Write [{values!r}] if that is the value.")
    if not values:
        raise ConfigError(f"{where} got an empty list: there is nothing to choose from.")
    return list(values)


def index_of(value: Any, options: Sequence[Any]) -> int | None:
    """Where `value` is among the options: the object itself, else an equal one of the same kind."""
    for number, option in enumerate(options):
        if option is value:
            return number
    for number, option in enumerate(options):
        try:
            if (isinstance(option, bool) == isinstance(value, bool)) and bool(option == value):
                return number
        except (TypeError, ValueError):  # arrays have no truth value: only the same object counts
            continue
    return None


def _takes_an_argument(func: Callable[..., Any]) -> bool:
    """Whether to hand over the other parameters; arguments with defaults are the function's own."""
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError):  # some built-in functions do not say
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.default is each.empty and each.kind in positional]
    keywords = [each for each in parameters if each.default is each.empty and each.kind is each.KEYWORD_ONLY]
    if len(needed) > 1 or keywords:
        raise ConfigError(
            f"sample_from() calls its function with one argument, the other parameters; {func!r} needs "
            f"{', '.join(each.name for each in [*needed, *keywords])}."
        )
    return bool(needed) or any(each.kind is each.VAR_POSITIONAL for each in parameters)
