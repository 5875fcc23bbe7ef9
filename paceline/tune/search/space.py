"""From a search space and what was suggested to the configuration of a trial, as pure functions.

A space is one that the user wrote, or what `find` made of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from paceline.air.config import ScalingConfig
from paceline.air.errors import ConfigError, RestoreError
from paceline.air.metrics import flattened, nested_get
from paceline.air.secrets import masked
from paceline.tune.search import sample
from paceline.tune.search.domains import Domain, Function, index_of
from paceline.tune.search.variants import (
    ABSENT,
    Found,
    Path,
    assigned,
    child_at,
    children,
    completed,
    find,
    is_container,
    own_key,
    path_text,
)

__all__ = [
    "Found",
    "Path",
    "assigned",
    "chosen_in",
    "config_with",
    "describe",
    "evaluated_from_record",
    "evaluated_record",
    "find",
    "from_description",
    "path_text",
    "resolve",
    "tag",
    "values_in",
]

TAG_LENGTH = 60


def resolve(
    space: Mapping[str, Any] | Found, suggestion: Mapping[str, Any], random_state: Any = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration of a trial, and in it what the search chose, by name.

    The suggestion is nested as the space is, or flat with names ``a/b``, and covers all of
    the space or part of it: what it leaves out is drawn. What it adds or changes counts as chosen.
    """
    found = find(space)
    values = values_in(found, suggestion)
    left = [path for path in found.grids if path not in values]
    if left:
        names = ", ".join(repr(found.texts[path]) for path in left)
        raise ConfigError(f"The searcher did not choose a value for grid_search at {names}: use choice() with it.")
    config, chosen = completed(found, values, random_state)
    return config, _by_name(chosen, found)


def config_with(space: Mapping[str, Any] | Found, evaluated: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration that `resolve` made when it chose `evaluated`."""
    found = find(space)
    values = values_in(found, evaluated)
    for path in (*found.domains, *found.grids):
        if path not in values:
            raise RestoreError(
                f"The search space has a parameter {found.texts[path]!r} that this trial was not given. "
                "Continue with the search space that the experiment was started with."
            )
    return completed(found, values)[0]


def values_in(found: Found, given: Mapping[str, Any]) -> dict[Path, Any]:
    """What `given` says about the space: values for what is searched, and constants it adds or changes."""
    values: dict[Path, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in given.items():
        if name in found.paths:
            values[found.paths[name]] = value
        else:
            rest[name] = value
    _collect(found.space, rest, (), found, values)
    return values


def _collect(node: Any, given: Any, path: Path, found: Found, values: dict[Path, Any]) -> None:
    """Walk along `node` and `given`, noting where they differ."""
    for key, value in children(given):
        own = own_key(node, key)
        if own is ABSENT:
            _collect_unknown(node, key, value, path, found, values)
            continue
        here, child = (*path, own), child_at(node, own)
        if here in found.texts:
            values[here] = value
        elif child is not value:
            if _is_part_of(value, child):
                _collect(child, value, here, found, values)
            elif index_of(value, (child,)) is None:
                values[here] = value


def _collect_unknown(node: Any, key: Any, value: Any, path: Path, found: Found, values: dict[Path, Any]) -> None:
    """A key that the container does not have: a name ``a/b`` that leads further down, or something new."""
    parts = key.split("/") if isinstance(key, str) else [key]
    for end in range(1, len(parts)):
        own = own_key(node, "/".join(parts[:end]))
        if own is not ABSENT and (*path, own) not in found.texts and is_container(child_at(node, own)):
            _collect(child_at(node, own), {"/".join(parts[end:]): value}, (*path, own), found, values)
            return
    values[(*path, *parts)] = value


def _is_part_of(value: Any, node: Any) -> bool:
    """Whether to go into `value` along with `node`, instead of putting it in the place of `node`."""
    if not is_container(value) or not is_container(node):
        return False
    if isinstance(value, list | tuple):
        return isinstance(node, list | tuple) and len(node) == len(value)
    return isinstance(value, Mapping) or type(value) is type(node)


def _by_name(values: Mapping[Path, Any], found: Found) -> dict[str, Any]:
    """Values under their names: what the space searches, in its order, then the rest."""
    named = {text: values[path] for path, text in found.texts.items()}
    for path, value in values.items():
        if path not in found.texts:
            named.update(flattened({path_text(path): value}))
    return named


def chosen_in(config: Mapping[str, Any], evaluated: Mapping[str, Any]) -> dict[str, Any]:
    """What the search chose, with the values that a changed configuration has for it."""
    return {name: nested_get(config, name, value) for name, value in evaluated.items()}


def tag(number: int, evaluated: Mapping[str, Any]) -> str:
    """A short name for a trial, such as ``0_lr=0.1``; parameters that do not fit in are left out."""
    text = str(number)
    for name, value in evaluated.items():
        *above, last = name.split("/")
        key = f"{above[-1]}.{last}" if above and last.isdigit() else last
        part = f"{key}={_short(value)}"
        joined = f"{text},{part}" if "_" in text else f"{text}_{part}"
        if len(joined) <= TAG_LENGTH:
            text = joined
    return text


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if value is None or isinstance(value, bool | int | str):
        text = str(value)
    else:
        text = getattr(value, "__name__", None) or type(value).__name__
    return "".join(letter if letter.isalnum() or letter in "._-+" else "_" for letter in text)


_MAKERS = {
    maker.__name__: maker
    for maker in (
        sample.choice,
        sample.grid_search,
        sample.lograndint,
        sample.loguniform,
        sample.qlograndint,
        sample.qloguniform,
        sample.qrandint,
        sample.qrandn,
        sample.quniform,
        sample.randint,
        sample.randn,
        sample.uniform,
    )
}


class _NotPlainError(Exception):
    """A value that has no form as plain data."""


def describe(space: Mapping[str, Any]) -> dict[str, Any] | None:
    """The whole space as plain data; None if some constant, option or function in it has no such form."""
    try:
        description = _plain(dict(space))
    except _NotPlainError:
        return None
    assert isinstance(description, dict)
    return description


def from_description(description: Mapping[str, Any]) -> dict[str, Any]:
    """The space that `describe` was given."""
    space = _value_of(description)
    if not isinstance(space, dict):
        raise RestoreError(f"This is not the description of a search space: {description!r}")
    return space


def evaluated_record(space: Mapping[str, Any] | Found, evaluated: Mapping[str, Any]) -> dict[str, Any]:
    """Chosen values as plain data. An option that has no such form is written as its position in the space."""
    found = find(space)
    record: dict[str, Any] = {}
    for name, value in masked(dict(evaluated)).items():
        try:
            record[name] = _plain(value)
        except _NotPlainError:
            options = found.options(found.paths[name]) if name in found.paths else None
            position = index_of(value, options) if options else None
            record[name] = {"$text": repr(value)} if position is None else {"$index": position}
    return record


def evaluated_from_record(space: Mapping[str, Any] | Found, record: Mapping[str, Any]) -> dict[str, Any]:
    """The chosen values that `evaluated_record` was given.

    Where a function returned something without plain form, the value is left out: `config_with` calls it again.
    """
    found = find(space)
    evaluated: dict[str, Any] = {}
    for name, written in record.items():
        path = found.paths.get(name)
        if isinstance(written, dict) and "$index" in written:
            options = found.options(path) if path is not None else None
            if not options or written["$index"] >= len(options):
                raise RestoreError(
                    f"A trial has value number {written['$index']} of the parameter {name!r}, which this search "
                    "space does not have. Continue with the search space that the experiment was started with."
                )
            evaluated[name] = options[written["$index"]]
        elif isinstance(written, dict) and "$text" in written:
            if path not in found.functions:
                raise RestoreError(
                    f"The value of the parameter {name!r} was {written['$text']}, which could not be written down. "
                    "Only numbers, texts, lists and dicts of them, and the options of choice() and grid_search() can."
                )
        else:
            evaluated[name] = _value_of(written)
    return evaluated


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return [_plain(item) for item in value]
    if kind is tuple:
        return {"$tuple": [_plain(item) for item in value]}
    if kind is dict:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: _plain(item) for key, item in value.items()}
        return {"$items": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if kind is ScalingConfig:
        return {"$scaling": {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}}
    if isinstance(value, Domain) and not isinstance(value, Function):
        maker, arguments = value.as_call()
        return {"$domain": [maker, *(_plain(each) for each in arguments)]}
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        plain = value.item()
        if type(plain) in (bool, int, float, str):
            return _plain(plain)
    raise _NotPlainError


def _value_of(written: Any) -> Any:
    if isinstance(written, list):
        return [_value_of(item) for item in written]
    if not isinstance(written, dict):
        return written
    if len(written) == 1:
        (key, inner), *_ = written.items()
        if key == "$float":
            return float(inner)
        if key == "$tuple":
            return tuple(_value_of(item) for item in inner)
        if key == "$items":
            return {_value_of(name): _value_of(item) for name, item in inner}
        if key == "$scaling":
            return ScalingConfig(**{name: _value_of(item) for name, item in inner.items()})
        if key == "$domain":
            maker, *arguments = inner
            if maker not in _MAKERS:
                raise RestoreError(f"The search space was written by another version: it has {maker!r}.")
            return _MAKERS[maker](*(_value_of(each) for each in arguments))
    return {name: _value_of(item) for name, item in written.items()}
