"""Search spaces and chosen values as plain data, to be written down and read again without pickle.

What JSON has no form for is a dict with one key that starts with a dollar sign.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from paceline.air.config import ScalingConfig
from paceline.air.errors import RestoreError
from paceline.air.secrets import masked
from paceline.tune.search import sample
from paceline.tune.search.domains import Domain, Function, index_of
from paceline.tune.search.paths import Found, find

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


def evaluated_record(
    space: Mapping[str, Any], evaluated: Mapping[str, Any], found: Found | None = None
) -> dict[str, Any]:
    """Chosen values as plain data. An option that has no such form is written as its position in the space."""
    found = find(space) if found is None else found
    record: dict[str, Any] = {}
    for name, value in masked(dict(evaluated)).items():
        try:
            record[name] = _plain(value)
        except _NotPlainError:
            options = found.options(found.paths[name]) if name in found.paths else None
            position = index_of(value, options) if options else None
            record[name] = {"$text": repr(value)} if position is None else {"$index": position}
    return record


def evaluated_from_record(
    space: Mapping[str, Any], record: Mapping[str, Any], found: Found | None = None
) -> dict[str, Any]:
    """The chosen values that `evaluated_record` was given.

    Where a function returned something without plain form, the value is left out: `config_with` calls it again.
    """
    found = find(space) if found is None else found
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
