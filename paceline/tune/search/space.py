"""From a search space and what was suggested to the configuration of a trial, as pure functions.

Where a caller has `find(space)` already, it can be given as `found`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.air.errors import ConfigError, RestoreError
from paceline.air.metrics import flattened
from paceline.tune.search.completion import completed
from paceline.tune.search.domains import index_of
from paceline.tune.search.paths import (
    ABSENT,
    Found,
    Path,
    assigned,
    child_at,
    children,
    find,
    is_container,
    own_key,
    path_text,
)
from paceline.tune.search.space_records import describe, evaluated_from_record, evaluated_record, from_description

__all__ = [
    "Found",
    "Path",
    "assigned",
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
    space: Mapping[str, Any], suggestion: Mapping[str, Any], random_state: Any = None, found: Found | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration of a trial, and in it what the search chose, by name.

    The suggestion is nested as the space is, or flat with names ``a/b``, and covers all of
    the space or part of it: what it leaves out is drawn. What it adds or changes counts as chosen.
    """
    found = find(space) if found is None else found
    values = values_in(space, suggestion, found)
    left = [path for path in found.grids if path not in values]
    if left:
        names = ", ".join(repr(found.texts[path]) for path in left)
        raise ConfigError(f"The searcher did not choose a value for grid_search at {names}: use choice() with it.")
    config, chosen = completed(space, values, found, random_state)
    return config, _by_name(chosen, found)


def config_with(space: Mapping[str, Any], evaluated: Mapping[str, Any], found: Found | None = None) -> dict[str, Any]:
    """The configuration that `resolve` made when it chose `evaluated`."""
    found = find(space) if found is None else found
    values = values_in(space, evaluated, found)
    for path in (*found.domains, *found.grids):
        if path not in values:
            raise RestoreError(
                f"The search space has a parameter {found.texts[path]!r} that this trial was not given. "
                "Continue with the search space that the experiment was started with."
            )
    return completed(space, values, found)[0]


def values_in(space: Mapping[str, Any], given: Mapping[str, Any], found: Found) -> dict[Path, Any]:
    """What `given` says about the space: values for what is searched, and constants it adds or changes."""
    values: dict[Path, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in given.items():
        if name in found.paths:
            values[found.paths[name]] = value
        else:
            rest[name] = value
    _collect(space, rest, (), found, values)
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
