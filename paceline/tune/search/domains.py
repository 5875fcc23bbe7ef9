"""What a parameter may be: a domain, and the sampler that says how values are drawn from it.

Those of numbers are in `ranges`. All are immutable values: equal if they mean the same, and shown as the call that
makes them.
"""

from __future__ import annotations

import inspect
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.air.errors import ConfigError
from paceline.tune.search.samplers import Grid, Sampler, Uniform, generator

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
