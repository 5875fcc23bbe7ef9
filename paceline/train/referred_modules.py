"""Which modules a function refers to: what its workers will import, and so how they are best started."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from itertools import islice
from typing import Any

_LIBRARIES = (
    "horovod",
    "keras",
    "lightgbm",
    "numpy",
    "paceline",
    "pandas",
    "scipy",
    "sklearn",
    "tensorflow",
    "tf_keras",
    "torch",
    "xgboost",
)
_NOT_THE_USERS = frozenset([*_LIBRARIES, *sys.stdlib_module_names])
"""Packages whose inside is not looked into."""
_MOST_VISITED = 1000
_PLAIN = (bool, int, float, str, bytes)


def referred_modules(*values: Any) -> set[str]:
    """Names of modules that functions, classes and other values come from or name in their code. Nothing is
    imported to find out, and names that merely read like a module's are among them."""
    seen: set[int] = set()
    return {name for value in values for name in _names_in(value, seen)}


def _names_in(value: Any, seen: set[int]) -> Iterator[str]:
    """Modules that the value comes from, or that its code names."""
    if value is None or isinstance(value, _PLAIN) or id(value) in seen or len(seen) > _MOST_VISITED:
        return
    seen.add(id(value))
    if isinstance(value, types.ModuleType):
        yield value.__name__
    elif isinstance(value, type | types.FunctionType):
        yield value.__module__
        if "<locals>" not in value.__qualname__:
            yield from _imported_with(value.__module__, seen)
        if value.__module__.partition(".")[0] not in _NOT_THE_USERS:
            for part in _parts_of_class(value) if isinstance(value, type) else _parts_of_function(value):
                yield from [part] if isinstance(part, str) else _names_in(part, seen)
    else:
        for part in _parts_of_object(value):
            yield from _names_in(part, seen)


def _imported_with(module_name: str, seen: set[int]) -> Iterator[str]:
    """What a module of the user's imports at its top: a worker that finds something there by name imports all of it."""
    module = sys.modules.get(module_name)
    if module is None or id(module) in seen or module_name == "__main__":
        return
    if module_name.partition(".")[0] in _NOT_THE_USERS:
        return
    seen.add(id(module))
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            yield name


def _parts_of_object(value: Any) -> Iterator[Any]:
    """What an object holds: of a collection its first items, of one of the user's own class its attributes."""
    if isinstance(value, dict):
        yield from islice(value.values(), _MOST_VISITED)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from islice(value, _MOST_VISITED)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield value.fget
    else:
        yield type(value)
        if type(value).__module__.partition(".")[0] not in _NOT_THE_USERS:
            yield getattr(value, "__dict__", None)


def _parts_of_class(value: type) -> Iterator[Any]:
    yield from value.__bases__
    yield from (part for part in vars(value).values() if not isinstance(part, str))


def _parts_of_function(value: types.FunctionType) -> Iterator[Any]:
    for name in _names_in_code(value.__code__):
        yield name
        yield value.__globals__.get(name)
    for cell in value.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _names_in_code(code: types.CodeType) -> Iterator[str]:
    """Names in it, among which are those of the modules that it imports."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in_code(constant)
