"""What the code of a run looked like, so that a restore can say what has changed since.

A fingerprint is plain data: the Python version, and a hash for the function and for each function of its module that
it refers to. None means that nothing is known about the code.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import textwrap
import tokenize
import types
from collections.abc import Iterator, Mapping
from typing import Any

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
