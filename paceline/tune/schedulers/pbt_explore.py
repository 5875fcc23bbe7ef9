"""How population-based training changes a configuration: draw anew, scale a number, step to a neighbour.

Mutations mirror the configuration: a nested dictionary whose leaves are lists, domains or
functions without arguments. Configurations are never changed in place, because trials
share the parts that the search did not choose.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Protocol, runtime_checkable

from paceline.air.checks import is_search_space
from paceline.air.errors import ConfigError
from paceline.air.metrics import nested_get

Mutations = Mapping[str, Any]


@runtime_checkable
class Drawable(Protocol):
    """What is asked of ``tune.uniform(...)`` and its like."""

    def sample(self, spec: Any = None, size: int = 1, random_state: Any = None) -> Any: ...

    def is_valid(self, value: Any) -> bool: ...


def check_mutations(mutations: Any, where: str = "hyperparam_mutations") -> None:
    """Refuse what cannot be drawn from, naming the place."""
    if not isinstance(mutations, Mapping) or not mutations:
        raise ConfigError(f"{where} must be a dict such as {{'lr': tune.loguniform(1e-4, 1e-1)}}, not {mutations!r}.")
    for key, mutation in mutations.items():
        place = f"{where}[{key!r}]"
        if isinstance(mutation, Mapping) and is_search_space(mutation):
            raise ConfigError(
                f"{place} is a grid_search. Give the list of values itself: {list(mutation['grid_search'])}."
            )
        if isinstance(mutation, Mapping):
            check_mutations(mutation, place)
        elif isinstance(mutation, (list, tuple)):
            if not mutation:
                raise ConfigError(f"{place} is empty: there is no value to choose.")
        elif callable(mutation) and not isinstance(mutation, Drawable):
            _check_callable_without_arguments(mutation, place)
        elif not isinstance(mutation, Drawable):
            raise ConfigError(
                f"{place} is {mutation!r}: give a list of values, a domain such as tune.uniform(0, 1), a function "
                "without arguments that draws a value, or a dict of these. A value that stays belongs in param_space."
            )


def _check_callable_without_arguments(mutation: Any, place: str) -> None:
    try:
        inspect.signature(mutation).bind()
    except TypeError:
        raise ConfigError(
            f"{place} is a function with arguments. It is called without any: write lambda: random.uniform(0, 1), or "
            "give a domain such as tune.uniform(0, 1)."
        ) from None
    except ValueError:  # some built-in functions do not say
        return


def filled(config: Mapping[str, Any], mutations: Mutations, rng: random.Random) -> dict[str, Any]:
    """The configuration with a drawn value under each key of `mutations` that it lacks."""
    complete = dict(config)
    for key, mutation in mutations.items():
        if isinstance(mutation, Mapping):
            complete[key] = filled(_nested(config, key), mutation, rng)
        elif key not in config:
            if nested_get(config, key) is not None:
                raise ConfigError(f"The mutations have {key!r}: nest them as param_space is nested, not with slashes.")
            complete[key] = _drawn(mutation, rng)
    return complete


def explored(
    config: Mapping[str, Any],
    mutations: Mutations,
    rng: random.Random,
    *,
    resample_probability: float,
    factors: Sequence[float],
) -> dict[str, Any]:
    """A configuration near the given one: each mutated value is moved a little or, with that probability, redrawn."""
    new = copied(config)
    for key, mutation in mutations.items():
        if isinstance(mutation, Mapping):
            new[key] = explored(
                _nested(config, key), mutation, rng, resample_probability=resample_probability, factors=factors
            )
        elif key not in config or rng.random() < resample_probability:
            new[key] = _drawn(mutation, rng)
        else:
            new[key] = _moved(config[key], mutation, rng, factors)
    return new


def copied(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the nested dictionaries, not of the values in them, which may be large or impossible to copy."""
    return {key: copied(value) if isinstance(value, dict) else value for key, value in config.items()}


def _nested(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = config.get(key, {})
    if not isinstance(inner, Mapping):
        raise ConfigError(
            f"The mutations have a dict under {key!r}, but a trial's configuration has {inner!r} there. "
            "Nest the mutations as param_space is nested."
        )
    return inner


def _drawn(mutation: Any, rng: random.Random) -> Any:
    if isinstance(mutation, (list, tuple)):
        return rng.choice(mutation)
    if isinstance(mutation, Drawable):
        return mutation.sample(random_state=rng)
    return mutation()


def _moved(value: Any, mutation: Any, rng: random.Random, factors: Sequence[float]) -> Any:
    options = mutation if isinstance(mutation, (list, tuple)) else getattr(mutation, "categories", None)
    if options is not None:
        return _neighbour(value, options, rng)
    if isinstance(value, bool) or not isinstance(value, Real):
        return value  # only drawing anew can change it
    factor = rng.choice(factors)
    return _scaled(value, factor, mutation)


def _neighbour(value: Any, options: Sequence[Any], rng: random.Random) -> Any:
    if value not in options:
        return rng.choice(options)
    place = list(options).index(value)
    beside = [at for at in (place - 1, place + 1) if 0 <= at < len(options)]
    return options[rng.choice(beside)] if beside else value


def _scaled(number: Any, factor: float, mutation: Any) -> Any:
    """The number times the factor, within the domain. Whole numbers and multiples of q stay such, and do move."""
    step = getattr(mutation, "q", None) or (1 if isinstance(number, Integral) else None)
    if step is None:
        return _within(number * factor, mutation)
    # Rounded away from the old value: 2 * 1.2 would come back to 2 for ever.
    count = round(abs(number) / step * factor, 9)
    count = math.ceil(count) if factor > 1 else math.floor(count)
    if not isinstance(mutation, Drawable):
        count = max(count, min(1, math.ceil(abs(number) / step)))  # nothing says that 0 layers make sense
    moved = math.copysign(1, number) * count * step
    return _within(int(moved) if isinstance(number, Integral) else moved, mutation)


def _within(number: Any, mutation: Any) -> Any:
    lower, upper = getattr(mutation, "lower", None), getattr(mutation, "upper", None)
    if lower is None or upper is None:
        return number
    number = min(max(number, lower), getattr(mutation, "largest", upper))  # the upper bound of randint is no value
    return mutation.cast(number) if getattr(mutation, "q", None) else number
