"""Settings as plain data, so that a restored run or search has those that it had.

`stored` and `restored` are the one way for every config: what is a plain value is written down and comes back, what is
code or an object is not. Callbacks are code too, but those that were asked for by a registered name are made again by
that name. A new field of a config needs nothing here.

Of the user's code a `fingerprint` is stored: the Python version, and a hash for the function and for each function of
its module that it refers to. None means that nothing is known about the code.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import sys
import textwrap
import tokenize
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from paceline.air.config import RunConfig
from paceline.air.secrets import masked, secret_paths

C = TypeVar("C")

NOT_STORED: Mapping[str, Mapping[str, str]] = {
    "RunConfig": {
        "name": "a header has it as the experiment's name",
        "storage_path": "files may have been moved; they are where they were found",
        "local_dir": "an old name of storage_path",
        "storage_filesystem": "an object",
        "progress_reporter": "code",
    },
    "ScalingConfig": {"policy": "code"},
    "SyncConfig": {"upload_dir": "an old name of storage_path"},
    "CheckpointConfig": {"_checkpoint_keep_all_ranks": "an old name of keep_all_ranks"},
    "TuneConfig": {
        "search_alg": "an object, described by itself",
        "scheduler": "an object, described by itself",
        "trial_name_creator": "code",
        "trial_dirname_creator": "code",
        "reuse_actors": "without effect",
    },
}
"""By class and field, why a setting is not written down."""


def stored_names(kind: type) -> list[str]:
    """The fields of a config that are written down."""
    return [field.name for field in dataclasses.fields(kind) if field.name not in NOT_STORED.get(kind.__name__, {})]


def stored(config: Any) -> dict[str, Any]:
    """The plain settings of a config, those of the configs in it included. What is code in a field is left out."""
    settings: dict[str, Any] = {}
    for name in stored_names(type(config)):
        value = getattr(config, name)
        if name == "callbacks" and isinstance(config, RunConfig):
            settings[name] = _registered_names(value)
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            settings[name] = stored(value)
            continue
        plain = as_json(dict(value) if isinstance(value, Mapping) else value)
        if plain is not None or value is None:
            settings[name] = plain
    return settings


def restored(kind: type[C], settings: Mapping[str, Any], **given: Any) -> C:
    """The config that `stored` was given; `given` are settings that go before the stored ones.

    Fields that only another version has are passed over, and those that it did not have get their default.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # every config is a dataclass
        if field.name in settings:
            value = settings[field.name]
            inner: Any = field.default_factory
            if isinstance(inner, type) and dataclasses.is_dataclass(inner):
                value = restored(inner, value)
            elif isinstance(value, list) and "tuple" in str(field.type):
                value = tuple(value)  # JSON has no tuples
            values[field.name] = value
    return kind(**{**values, **given})


def need_code(callbacks: Sequence[Any]) -> bool:
    """True if a restore cannot make all of these callbacks by their registered names."""
    return len(_registered_names(callbacks)) < len(callbacks)


def _registered_names(callbacks: Sequence[Any]) -> list[str]:
    names = (getattr(callback, "registered_as", None) for callback in callbacks)
    return [name for name in names if isinstance(name, str)]


def run_config_again(config: Any) -> str | None:
    """The RunConfig that a restore must be given, in a line for people to complete; None if all of it is stored.

    It takes the place of the stored one, so it repeats what that one sets.
    """
    if not need_code(config.callbacks) and not callable(config.stop):
        return None
    default, shown = type(config)(), []
    for name in stored_names(type(config)):
        value = getattr(config, name)
        if name == "callbacks" and not need_code(value):
            value = _registered_names(value)
        if value != getattr(default, name):
            is_plain = dataclasses.is_dataclass(value) or as_json(value) is not None or value is None
            shown.append(f"{name}={value!r}" if is_plain else f"{name}=...")
    return f"{type(config).__name__}({', '.join(shown)})"


def plain_config(config: Any) -> Any:
    """A configuration as it is written down: without its secrets; None if it is not plain JSON."""
    return as_json(masked(config))


_PLAIN = (bool, int, float, str, type(None))


def as_json(value: Any) -> Any:
    """The value if it is plain JSON, else None."""
    if type(value) in _PLAIN:  # as most settings are, which are written down for each trial of a search
        return value
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return None


def storable(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments that can be stored, plain JSON without secrets, and the names of others that are not None."""
    plain = {
        name: value
        for name, value in arguments.items()
        if as_json(value) is not None and not secret_paths({name: value})
    }
    return plain, [name for name, value in arguments.items() if value is not None and name not in plain]


Fingerprint = Mapping[str, Any]

_MOST_FUNCTIONS = 200
_MOST_NAMED = 4


def fingerprint(code: Any) -> dict[str, Any] | None:
    """The fingerprint of a function, a callable object or a class; None if its code cannot be looked at."""
    waiting = list(_functions_in(code))
    if not waiting:
        return None
    module, found = waiting[0].__module__, dict[str, str]()
    while waiting and len(found) < _MOST_FUNCTIONS:
        function = waiting.pop()
        if function.__qualname__ not in found:
            found[function.__qualname__] = _hash_of(function)
            waiting += [each for each in _referred_to(function) if each.__module__ == module]
    return {"python": f"{sys.version_info.major}.{sys.version_info.minor}", "functions": dict(sorted(found.items()))}


def changes(earlier: Fingerprint | None, now: Fingerprint | None) -> str:
    """What differs, as the part of a sentence; empty if nothing is known to differ."""
    if not earlier or not now:
        return ""
    old, new = earlier["functions"], now["functions"]
    kinds = {
        "changed": [name for name in new if name in old and _differ(old[name], new[name])],
        "new": [name for name in new if name not in old],
        "gone": [name for name in old if name not in new],
    }
    parts = [f"{kind}: {_listed(names)}" for kind, names in kinds.items() if names]
    if earlier["python"] != now["python"]:
        parts.append(f"Python {earlier['python']} is now {now['python']}")
    return "; ".join(parts)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _differ(old: str, new: str) -> bool:
    """Hashes of different kinds cannot be compared: the source was there only once."""
    return old != new and old.partition(":")[0] == new.partition(":")[0]


def _functions_in(code: Any) -> Iterator[types.FunctionType]:
    while isinstance(code, functools.partial):
        code = code.func
    code = inspect.unwrap(code) if callable(code) else code
    if isinstance(code, types.MethodType):
        code = code.__func__
    if isinstance(code, types.FunctionType):
        yield code
    elif isinstance(code, type):
        for value in vars(code).values():
            value = getattr(value, "__func__", value)  # of a static or class method
            if isinstance(value, types.FunctionType):
                yield value
    elif callable(code) and not inspect.isbuiltin(code):
        yield from _functions_in(type(code))


def _referred_to(function: types.FunctionType) -> Iterator[types.FunctionType]:
    values = [function.__globals__.get(name) for name in _names_in(function.__code__)]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    for value in values:
        if isinstance(value, types.FunctionType | type) and value.__module__ == function.__module__:
            yield from _functions_in(value)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _hash_of(function: types.FunctionType) -> str:
    try:
        kind, text = "source", textwrap.dedent(inspect.getsource(function)).strip()
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):  # typed in, made by exec(), or edited since
        kind, text = "code", _constants_of(function.__code__)
    return f"{kind}:{hashlib.sha256(text.encode('utf-8', 'backslashreplace')).hexdigest()[:16]}"


def _constants_of(code: types.CodeType) -> str:
    """Constants and names; not the byte code, which each Python version writes differently."""
    constants = [
        _constants_of(each)
        if isinstance(each, types.CodeType)
        else repr(sorted(map(repr, each)) if isinstance(each, frozenset) else each)  # the order of a set is random
        for each in code.co_consts
    ]
    return repr((code.co_names, code.co_varnames, constants))
