"""Where a nested search space holds what is searched, and its variants: the grid, point by point, the rest drawn at
random or computed by functions.

Dicts, lists, tuples and dataclasses are looked into. Nothing is ever copied that does not change: constants are shared
by all configurations.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from paceline.air.checks import near_miss
from paceline.air.errors import ConfigError
from paceline.air.secrets import secret_paths
from paceline.tune.search.domains import Categorical, Domain, Function, Grid, generator, listed
from paceline.tune.search.sample import grid_search

Path = tuple[Any, ...]
"""Keys, positions and field names that lead to a value."""

ABSENT = object()
_MADE_BY = "paceline.tune.search.sample"
"""The module of uniform(), choice() and so on."""


@dataclass
class Found:
    """A space, and what is searched in it, in the order of the space."""

    space: Mapping[str, Any] = field(default_factory=dict)
    domains: dict[Path, Domain] = field(default_factory=dict)
    """Drawn at random, or suggested by a searcher."""
    grids: dict[Path, list[Any]] = field(default_factory=dict)
    functions: dict[Path, Function] = field(default_factory=dict)
    """Worked out from the others."""
    texts: dict[Path, str] = field(default_factory=dict)
    """All of them, each with its name ``a/b``."""
    paths: dict[str, Path] = field(default_factory=dict)
    """The same the other way round."""

    def options(self, path: Path) -> tuple[Any, ...] | list[Any] | None:
        """The values that can be at a path, where they are listed."""
        domain = self.domains.get(path)
        return domain.categories if isinstance(domain, Categorical) else self.grids.get(path)


def path_text(path: Path) -> str:
    return "/".join(str(part) for part in path)


def find(space: Mapping[str, Any] | Found | None) -> Found:
    """All that is searched in `space`; refuses what cannot be searched, saying where it is.

    Whoever has found it already can give that in the place of a space, here and below.
    """
    if isinstance(space, Found):
        return space
    if space is None:
        return Found()
    found = Found(space)
    if not isinstance(space, Mapping) or is_grid(space):
        raise ConfigError(f"A search space is a dict of parameters, such as {{'lr': uniform(0, 1)}}, not {space!r}.")
    for path, leaf in _searched(space, (), set()):
        text = path_text(path)
        if found.paths.setdefault(text, path) != path:
            raise ConfigError(f"Two parameters of the search space are both called {text!r}: rename one of them.")
        found.texts[path] = text
        if isinstance(leaf, Function):
            found.functions[path] = leaf
        elif isinstance(leaf, Domain) and not (isinstance(leaf, Categorical) and isinstance(leaf.sampler, Grid)):
            found.domains[path] = leaf
        else:
            values = leaf.categories if isinstance(leaf, Categorical) else leaf["grid_search"]
            found.grids[path] = listed(values, f"grid_search at {text!r}")
        for option in found.options(path) or ():
            reject_secret(path, option)
            if holds_search(option):
                raise ConfigError(
                    f"A value of {text!r} contains a search space itself: {option!r}. Draw both beside each other "
                    "and use sample_from() for what depends on the choice."
                )
    return found


def reject_secret(path: Path, value: Any) -> None:
    """Refuse a secret as a value to search over: what was chosen is written down and shown."""
    for key in reversed(path):
        value = {key: value}
    for secret in secret_paths(value):
        raise ConfigError(
            f"{path_text(secret)!r} is a secret, which is never written down, so that it cannot be searched over. Give "
            "it one value, or search over something that stands for it, such as the name of an account."
        )


def reject_secret_options(node: Any, path: Path = ()) -> None:
    """The same for what a scheduler may change: lists of values and domains, nested as the space is."""
    if isinstance(node, Mapping):
        for key, child in node.items():
            reject_secret_options(child, (*path, key))
    else:
        options = node.categories if isinstance(node, Categorical) else node
        for option in options if isinstance(options, list | tuple | set) else ():
            reject_secret(path, option)


def is_grid(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"grid_search"}


def is_searched(value: Any) -> bool:
    return isinstance(value, Domain) or is_grid(value)


def holds_search(value: Any) -> bool:
    """Whether something is searched here or anywhere below."""
    return is_searched(value) or (is_container(value) and next(_searched(value, (), set()), None) is not None)


def _searched(node: Any, path: Path, above: set[int]) -> Iterator[tuple[Path, Any]]:
    """What is searched below a node. `above`: the containers it lies in, as an object may contain itself."""
    above.add(id(node))
    for key, child in children(node):
        if is_searched(child):
            yield (*path, key), child
        elif is_container(child) and id(child) not in above:
            yield from _searched(child, (*path, key), above)
        elif isinstance(child, FunctionType) and child.__module__ == _MADE_BY:
            where, name = path_text((*path, key)), child.__name__
            raise ConfigError(f"{where!r} is the function tune.{name} itself: call it, as in tune.{name}(...).")
    above.discard(id(node))


def is_container(value: Any) -> bool:
    return isinstance(value, dict | list | tuple) or _is_record(value)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type | Domain)


def children(node: Any) -> Iterable[tuple[Any, Any]]:
    """Keys and values of a container."""
    if isinstance(node, Mapping):
        return node.items()
    if isinstance(node, list | tuple):
        return enumerate(node)
    return ((each.name, getattr(node, each.name, None)) for each in dataclasses.fields(node) if each.init)


def child_at(node: Any, key: Any) -> Any:
    """The child of that name; a text finds a key or position that is a number too. ABSENT if there is none."""
    own = own_key(node, key)
    if own is ABSENT:
        return ABSENT
    return getattr(node, own) if _is_record(node) else node[own]


def own_key(node: Any, key: Any) -> Any:
    """The key as the container has it, or ABSENT."""
    if isinstance(node, Mapping):
        return key if key in node else next((own for own in node if str(own) == key), ABSENT)
    if isinstance(node, list | tuple):
        position = int(key) if str(key).isdecimal() else -1
        return position if 0 <= position < len(node) else ABSENT
    return key if any(name == key for name, _ in children(node)) else ABSENT


def assigned(space: Mapping[str, Any], values: Mapping[Path, Any]) -> dict[str, Any]:
    """A new configuration: `space` with the values at those paths. All else is shared with `space`."""
    return _assigned(space, list(values.items()), 0) if values else dict(space)


def _assigned(node: Any, items: list[tuple[Path, Any]], depth: int) -> Any:
    changed: dict[Any, Any] = {}
    deeper: dict[Any, list[tuple[Path, Any]]] = {}
    for item in items:
        path, value = item
        if len(path) == depth + 1:
            changed[path[depth]] = value
        else:
            deeper.setdefault(path[depth], []).append(item)
    for key, inner in deeper.items():
        child = child_at(node, key)
        changed[key] = _assigned(child if is_container(child) else {}, inner, depth + 1)
    return _rebuilt(node, changed)


def _rebuilt(node: Any, changed: dict[Any, Any]) -> Any:
    """A container of the same kind with some of its values changed."""
    if isinstance(node, list | tuple):
        items = [changed.get(position, item) for position, item in enumerate(node)]
        if isinstance(node, tuple):
            return type(node)(*items) if hasattr(node, "_fields") else tuple(items)
        return items
    if type(node) is dict:
        return {**node, **changed}
    if isinstance(node, Mapping):
        rebuilt: Any = copy.copy(node) if isinstance(node, dict) else dict(node)
        rebuilt.update(changed)
        return rebuilt
    return dataclasses.replace(node, **changed)


__all__ = ["count_variants", "generate_variants", "grid_search"]


def generate_variants(
    unresolved_spec: Mapping[str, Any], constant_grid_search: bool = False, random_state: Any = None
) -> Iterator[tuple[dict[Path, Any], dict[str, Any]]]:
    """Each point of the grid once, the rest drawn at random: what was chosen, by path, and the configuration.

    constant_grid_search: draw the random parameters once for all points. random_state: a seed, or a generator.
    """
    found, rng = find(unresolved_spec), generator(random_state)
    drawn_once = rng.getrandbits(64)
    for number in range(count_variants(found)):
        draws = random.Random(drawn_once) if constant_grid_search else rng
        config, chosen = variant(found, number, draws)
        yield {found.paths[name]: value for name, value in chosen.items()}, config


def count_variants(space: Mapping[str, Any] | Found, fixed: Mapping[Path, Any] | None = None) -> int:
    """How many points the grid has, leaving out parameters that are fixed; 1 without a grid."""
    return math.prod(len(values) for path, values in find(space).grids.items() if not fixed or path not in fixed)


def variant(
    space: Mapping[str, Any] | Found,
    grid_number: int,
    random_state: Any = None,
    fixed: Mapping[Path, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One configuration and, by name, what was chosen for it.

    Grid points are numbered as nested loops would visit them, the last parameter changing fastest.
    """
    found = find(space)
    values = dict(fixed or {})
    for path, options in reversed(found.grids.items()):
        if path not in values:
            grid_number, position = divmod(grid_number, len(options))
            values[path] = options[position]
    config, chosen = completed(found, values, random_state)
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
    found: Found, values: Mapping[Path, Any], random_state: Any = None
) -> tuple[dict[str, Any], dict[Path, Any]]:
    """The configuration with those values and, for all else that is searched, drawn ones; and all the values."""
    missing = [path for path in found.texts if path not in values]
    if not missing:
        return assigned(found.space, values), dict(values)
    rng = generator(random_state)
    chosen = {**values, **{path: found.domains[path].draw(rng) for path in missing if path in found.domains}}
    config = assigned(found.space, chosen)
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
