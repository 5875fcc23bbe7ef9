"""Secrets in configurations: driver and workers see the real value, files contain ``{"secret": true}``.

A value is a secret if it is of type `Secret`, or if it is text or bytes under a name such as ``api_key``,
``hf_token`` or ``dbPassword``. Everything that writes or shows a configuration passes it through `masked`.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import re
from collections import deque
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from functools import partial
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

Path = tuple[Any, ...]
"""Keys, positions and field names that lead to a value."""

_ABSENT = object()
_STARS = "***"
_NEVER_SECRET = frozenset({bool, int, float, type(None)})
_SHOWN_BY_NAME = (type, ModuleType, FunctionType, BuiltinFunctionType, logging.Logger)
"""Their repr shows no content, and what can be reached from them is the whole process."""

_Seen = dict[tuple[int, bool], Any]
"""By id, and whether a name above is secret: the objects themselves, because the id of a freed one is used again."""

_LAST_WORDS = frozenset({"password", "passwd", "passphrase", "secret", "credential", "credentials"})
_KEYS = frozenset({"apikey", "accesskey", "privatekey"})
_TOKENS_OF_TEXT = frozenset({"eos", "pad", "bos", "unk", "cls", "sep", "mask"})
"""Before the word `token`: a tokenizer's special tokens are not secret."""
_ENDINGS = (*_LAST_WORDS, "key", "token")
_BETWEEN_WORDS = re.compile(r"[-_./\s]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Secret(str):
    """Text that paceline shows as ``***`` and never writes to a file.

    It is a `str` in every other respect: it reaches the workers with its value, and output of your own code is
    not masked.
    """

    __slots__ = ()

    def __new__(cls, value: str) -> Secret:
        if not isinstance(value, str):
            raise TypeError(f"Secret() takes text, not {type(value).__name__}.")
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return _STARS


def masked(value: Any) -> Any:
    """`value` with ``{"secret": True}`` in the place of each secret; the same object if it contains none.

    Dicts and their views, lists, tuples, sets, deques, dataclasses and namespaces are looked into. What stands
    below a secret name is secret too. Any other object is masked as a whole if there is a secret anywhere in its
    attributes, because its repr may show it.
    """
    harmless: _Seen = {}
    found = next(_secrets(value, False, {}, harmless), None)
    return value if found is None else _copy(value, False, {}, harmless)


def secret_paths(value: Any) -> list[Path]:
    """Where `masked` finds secrets."""
    return list(_secrets(value, False, {}, {}))


def missing_secrets(paths: Iterable[Iterable[Any]], given: Any) -> list[str]:
    """Those of the paths at which `given` has nothing, or no more than the mask."""
    missing = (path for path in paths if _is_mask(value := _at(given, path)) or value is _ABSENT)
    return ["/".join(map(str, path)) for path in missing]


def filled(stored: Any, given: Any) -> Any:
    """`stored` with each masked value taken from the same place in `given`, if there is one."""
    if _is_mask(stored):
        return stored if given is _ABSENT else given
    if isinstance(stored, dict):
        return {key: filled(item, _at(given, (key,))) for key, item in stored.items()}
    if type(stored) in (list, tuple):
        return type(stored)(filled(item, _at(given, (position,))) for position, item in enumerate(stored))
    return stored


def starred(stored: Any) -> Any:
    """`stored` with ``***`` in the place of each masked value, for people to read."""
    if _is_mask(stored):
        return _STARS
    if isinstance(stored, Mapping):
        return {key: starred(item) for key, item in stored.items()}
    if type(stored) in (list, tuple):
        return type(stored)(starred(item) for item in stored)
    return stored


def is_secret_name(name: str) -> bool:
    """Whether text under this name is a secret: its last words say so."""
    if not name.lower().rstrip("-_./ ").endswith(_ENDINGS):  # quick, because nearly all names end here
        return False
    words = ["", *(word.lower() for word in _BETWEEN_WORDS.split(name) if word)]
    before, last = words[-2:] if len(words) > 1 else ("", "")
    if last == "token":
        return before not in _TOKENS_OF_TEXT
    return last in _LAST_WORDS or last in _KEYS or before + last in _KEYS


def _secrets(value: Any, below: bool, seen: _Seen, harmless: _Seen) -> Iterator[Path]:
    """`below`: a name above says that everything here is secret."""
    if isinstance(value, str | bytes | bytearray):
        if below or isinstance(value, Secret):
            yield ()
        return
    children = _children(value)
    if children is None:
        if _holds_secret(value, below, harmless):
            yield ()
        return
    if (id(value), below) in seen:
        return
    seen[id(value), below] = value
    for name, child in children:
        kind = type(child)
        if isinstance(name, Secret):
            yield (_STARS,)
        elif kind not in _NEVER_SECRET:  # most of what is long is numbers
            inherits = below or _is_secret(name)
            if inherits or kind is not str:
                for path in _secrets(child, inherits, seen, harmless):
                    yield (name, *path)


def _copy(value: Any, below: bool, made: dict[tuple[int, bool], tuple[Any, Any]], harmless: _Seen) -> Any:
    """`made`: the objects copied so far with their copies, because an object may contain itself."""
    if isinstance(value, Secret) or (below and isinstance(value, str | bytes | bytearray)):
        return _mask()
    children = _children(value)
    if children is None:
        return _mask() if _holds_secret(value, below, harmless) else value
    place = (id(value), below)
    if place in made:
        return made[place][1]
    new: Any
    items = ((_shown(name), _copy(child, below or _is_secret(name), made, harmless)) for name, child in children)
    if isinstance(value, Mapping):
        new = {} if type(value) is dict or not isinstance(value, dict) else copy.copy(value)
        shown = new if isinstance(value, dict) else MappingProxyType(new)  # no more plain data than the original
        made[place] = (value, shown)
        new.clear()
        new.update(items)
        return shown
    if isinstance(value, list | deque | KeysView | ValuesView | ItemsView):
        new = []
        made[place] = (value, new)
        new.extend(item for _, item in items)
        return new
    if isinstance(value, tuple):
        parts = [item for _, item in items]
        new = type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        made[place] = (value, new)
        return new
    if isinstance(value, set | frozenset):
        new = frozenset(_STARS if _is_mask(item) else item for _, item in items)
        made[place] = (value, new)
        return new
    new = copy.copy(value)
    made[place] = (value, new)
    for name, item in items:
        object.__setattr__(new, name, item)
    return new


def _children(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Names or positions, and values, in a container; None if it is not one."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=True)
    if isinstance(value, ItemsView):
        return enumerate({key: item} for key, item in value)  # so that the key tells what the item is
    if isinstance(value, list | tuple | set | frozenset | deque | KeysView | ValuesView):
        return enumerate(value)
    if type(value).__name__ in ("Namespace", "SimpleNamespace"):  # argparse takes long to import
        attributes: dict[str, Any] = vars(value)
        return attributes.items()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((each.name, getattr(value, each.name, None)) for each in dataclasses.fields(value))
    return None


def _holds_secret(value: Any, below: bool, harmless: _Seen) -> bool:
    """Whether something that the object leads to is secret. Without recursion, because objects form long chains.

    `harmless`: what earlier searches went through without finding anything.
    """
    waiting, seen = [(value, below)], _Seen()
    while waiting:
        value, below = waiting.pop()
        if isinstance(value, str | bytes | bytearray):
            if below or isinstance(value, Secret):
                return True
            continue
        place = (id(value), below)
        if place in seen or place in harmless:
            continue
        seen[place] = value
        try:
            parts = list(_parts(value))
        except Exception:  # an object that cannot be searched is not shown either
            return True
        for name, child in parts:
            if isinstance(name, Secret):
                return True
            if type(child) not in _NEVER_SECRET:
                waiting.append((child, below or _is_secret(name)))
    harmless.update(seen)
    return False


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    """What the repr of a container or of any other object may show."""
    if isinstance(value, _SHOWN_BY_NAME):
        return ()
    if isinstance(value, partial):
        return [("func", value.func), ("args", value.args), *value.keywords.items()]
    if isinstance(value, MethodType):
        return [("self", value.__self__)]
    attributes = getattr(value, "__dict__", None)
    own = list(attributes.items()) if type(attributes) is dict else []
    return [*(_children(value) or ()), *own]


def _at(value: Any, path: Iterable[Any]) -> Any:
    for key in path:
        if isinstance(value, deque | KeysView | ValuesView | ItemsView):
            value = [child for _, child in _children(value) or ()]
        if isinstance(value, Mapping):
            value = value[key] if key in value else value.get(str(key), _ABSENT)  # JSON's keys are text
        elif isinstance(value, list | tuple) and isinstance(key, int):
            value = value[key] if key < len(value) else _ABSENT
        else:
            value = getattr(value, key, _ABSENT) if isinstance(key, str) else _ABSENT
    return value


def _is_secret(name: Any) -> bool:
    return isinstance(name, str) and is_secret_name(name)


def _shown(name: Any) -> Any:
    return _STARS if isinstance(name, Secret) else name


def _mask() -> dict[str, bool]:
    return {"secret": True}


def _is_mask(value: Any) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and value.get("secret") is True


def without_credentials(uri: str) -> str:
    """The URI without user, password and query; a path as it is."""
    return re.sub(r"://[^/]*@", "://", uri.partition("?")[0]) if "://" in uri else uri


_PASSWORD_IN_URI = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")


def text_without_passwords(text: str) -> str:
    """The text with `***` for the user and password of each URI in it."""
    return _PASSWORD_IN_URI.sub("***", text) if "://" in text else text
