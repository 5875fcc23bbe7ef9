"""The variants of a search space: its grid, point by point, the rest drawn at random or computed by functions."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError
from paceline.tune.search.domains import Function, generator
from paceline.tune.search.paths import Found, Path, assigned, find, holds_search, path_text
from paceline.tune.search.sample import grid_search

__all__ = ["count_variants", "generate_variants", "grid_search"]


def generate_variants(
    unresolved_spec: Mapping[str, Any], constant_grid_search: bool = False, random_state: Any = None
) -> Iterator[tuple[dict[Path, Any], dict[str, Any]]]:
    """Each point of the grid once, the rest drawn at random: what was chosen, by path, and the configuration.

    constant_grid_search: draw the random parameters once for all points. random_state: a seed, or a generator.
    """
    found, rng = find(unresolved_spec), generator(random_state)
    drawn_once = rng.getrandbits(64)
    for number in range(count_variants(unresolved_spec, found=found)):
        draws = random.Random(drawn_once) if constant_grid_search else rng
        config, chosen = variant(unresolved_spec, number, draws, found=found)
        yield {found.paths[name]: value for name, value in chosen.items()}, config


def count_variants(
    space: Mapping[str, Any], fixed: Mapping[Path, Any] | None = None, found: Found | None = None
) -> int:
    """How many points the grid has, leaving out parameters that are fixed; 1 without a grid."""
    found = find(space) if found is None else found
    return math.prod(len(values) for path, values in found.grids.items() if not fixed or path not in fixed)


def variant(
    space: Mapping[str, Any],
    grid_number: int,
    random_state: Any = None,
    fixed: Mapping[Path, Any] | None = None,
    found: Found | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One configuration and, by name, what was chosen for it.

    Grid points are numbered as nested loops would visit them, the last parameter changing fastest.
    """
    found = find(space) if found is None else found
    values = dict(fixed or {})
    for path, options in reversed(found.grids.items()):
        if path not in values:
            grid_number, position = divmod(grid_number, len(options))
            values[path] = options[position]
    config, chosen = completed(space, values, found, random_state)
    return config, {text: chosen[path] for path, text in found.texts.items()}


class _NotYetKnownError(Exception):
    """A function asked for a parameter that another function has yet to work out."""


class ChosenSoFar(Mapping[str, Any]):
    """The parameters of one trial as a function sees them, by ``spec.config.a.b`` or ``spec.config["a"]["b"]``."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, dict):
            return ChosenSoFar(value)
        if holds_search(value):
            raise _NotYetKnownError(key)
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(f"there is no parameter {name!r}{near_miss(name, [str(key) for key in self._values])}")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


class Spec(ChosenSoFar):
    """What a function gets: the parameters, both directly and as `config`.

    A space that has a part called "config" already, as specifications of old code do, is taken as it is.
    """

    @property
    def config(self) -> ChosenSoFar:
        own = self._values.get("config")
        return ChosenSoFar(own if isinstance(own, dict) else self._values)

    def __getitem__(self, key: str) -> Any:
        return self.config if key == "config" else super().__getitem__(key)


def completed(
    space: Mapping[str, Any], values: Mapping[Path, Any], found: Found, random_state: Any = None
) -> tuple[dict[str, Any], dict[Path, Any]]:
    """The configuration with those values and, for all else that is searched, drawn ones; and all the values."""
    missing = [path for path in found.texts if path not in values]
    if not missing:
        return assigned(space, values), dict(values)
    rng = generator(random_state)
    chosen = {**values, **{path: found.domains[path].draw(rng) for path in missing if path in found.domains}}
    config = assigned(space, chosen)
    functions = {path: found.functions[path] for path in missing if path in found.functions}
    if functions:
        results = _worked_out(config, functions, rng)
        config, chosen = assigned(config, results), {**chosen, **results}
    return config, chosen


def _worked_out(config: Mapping[str, Any], functions: Mapping[Path, Function], rng: random.Random) -> dict[Path, Any]:
    """The values of the functions that `config` still holds at those paths.

    A function that asks for the value of another one is called again after it.
    """
    values: dict[Path, Any] = {}
    waiting = dict(functions)
    while waiting:
        spec = Spec(assigned(config, values))
        called = list(waiting.items())
        for path, function in called:
            try:
                value = function.draw(rng, spec)
            except _NotYetKnownError:
                continue
            except Exception as error:
                error.add_note(f"This was in the sample_from() function of the parameter {path_text(path)!r}.")
                raise
            values[path] = value._values if isinstance(value, ChosenSoFar) else value
            del waiting[path]
        if len(waiting) == len(called):
            names = ", ".join(repr(path_text(path)) for path in waiting)
            raise ConfigError(f"The sample_from() functions of {names} wait for each other: break the circle.")
    return values
