"""What a parameter may be: a domain, and the sampler that says how values are drawn from it.

All of them are immutable values: equal if they mean the same, and shown as the call that makes them.
"""

from __future__ import annotations

import inspect
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

from paceline.air.errors import ConfigError
from paceline.tune.search.samplers import (
    Grid,
    LogUniform,
    Normal,
    Quantized,
    Sampler,
    Uniform,
    generator,
    real_number,
    whole_value,
)

Call = tuple[str, tuple[Any, ...]]


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


def _check_order(lower: float, upper: float) -> None:
    if lower > upper:
        raise ConfigError(f"lower is {lower!r} and upper is {upper!r}: swap them.")
    if lower == upper:
        raise ConfigError(f"lower and upper are both {lower!r}: for one value, write the value itself.")


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
