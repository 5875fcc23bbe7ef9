"""Parameters that are worked out from others: `sample_from(lambda spec: spec.config.width * 2)`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError
from paceline.tune.search.domains import Function
from paceline.tune.search.paths import Path, assigned, holds_search, path_text


class _NotYetKnownError(Exception):
    """A function asked for a parameter that another function has yet to work out."""


class Parameters(Mapping[str, Any]):
    """The parameters of one trial as a function sees them, by ``spec.config.a.b`` or ``spec.config["a"]["b"]``."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, dict):
            return Parameters(value)
        if holds_search(value):
            raise _NotYetKnownError(key)
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._values:
            raise AttributeError(f"there is no parameter {name!r}{near_miss(name, [str(key) for key in self._values])}")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


class Spec(Parameters):
    """What a function gets: the parameters, both directly and as `config`."""

    @property
    def config(self) -> Parameters:
        return Parameters(self._values)

    def __getitem__(self, key: str) -> Any:
        return self.config if key == "config" else super().__getitem__(key)


def worked_out(config: Mapping[str, Any], functions: Mapping[Path, Function], rng: random.Random) -> dict[Path, Any]:
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
                values[path] = function.draw(rng, spec)
            except _NotYetKnownError:
                continue
            except Exception as error:
                error.add_note(f"This was in the sample_from() function of the parameter {path_text(path)!r}.")
                raise
            del waiting[path]
        if len(waiting) == len(called):
            names = ", ".join(repr(path_text(path)) for path in waiting)
            raise ConfigError(f"The sample_from() functions of {names} wait for each other: break the circle.")
    return values
