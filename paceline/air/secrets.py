"""Secrets in configurations: driver and workers see the real value, files contain ``{"secret": true}``.

A value is a secret if it is of type `Secret`, or if it is text or bytes under a name such as ``api_key``,
``hf_token`` or ``dbPassword``. Everything that writes or shows a configuration passes it through `masked`.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

Path = tuple[Any, ...]
"""Keys, positions and field names that lead to a value."""

_ABSENT = object()
_STARS = "***"
_NEVER_SECRET = frozenset({bool, int, float, type(None)})

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

    Dicts, lists, tuples, sets, dataclasses and namespaces are looked into. What stands below a secret name
    is secret too. Any other object with a secret attribute is masked as a whole, because its repr may show it.
    """
    return value if next(_secrets(value, False, {}), None) is None else _copy(value, False, {})


def secret_paths(value: Any) -> list[Path]:
    """Where `masked` finds secrets."""
    return list(_secrets(value, False, {}))


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


def is_secret_name(name: str) -> bool:
    """Whether text under this name is a secret: its last words say so."""
    if not name.lower().rstrip("-_./ ").endswith(_ENDINGS):  # quick, because nearly all names end here
        return False
    words = ["", *(word.lower() for word in _BETWEEN_WORDS.split(name) if word)]
    before, last = words[-2:] if len(words) > 1 else ("", "")
    if last == "token":
        return before not in _TOKENS_OF_TEXT
    return last in _LAST_WORDS or last in _KEYS or before + last in _KEYS


def _secrets(value: Any, below: bool, seen: dict[tuple[int, bool], Any]) -> Iterator[Path]:
    """`below`: a name above says that everything here is secret.

    `seen` holds the objects themselves, because the id of one that is freed may be given to the next.
    """
    if isinstance(value, str | bytes | bytearray):
        if below or isinstance(value, Secret):
            yield ()
        return
    children = _children(value)
    if children is None:
        if _has_secret_attribute(value):
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
                for path in _secrets(child, inherits, seen):
                    yield (name, *path)


def _copy(value: Any, below: bool, made: dict[tuple[int, bool], tuple[Any, Any]]) -> Any:
    """`made`: the objects copied so far with their copies, because an object may contain itself."""
    if isinstance(value, Secret) or (below and isinstance(value, str | bytes | bytearray)):
        return _mask()
    children = _children(value)
    if children is None:
        return _mask() if _has_secret_attribute(value) else value
    place = (id(value), below)
    if place in made:
        return made[place][1]
    new: Any
    items = ((_shown(name), _copy(child, below or _is_secret(name), made)) for name, child in children)
    if isinstance(value, Mapping):
        new = {} if type(value) is dict or not isinstance(value, dict) else copy.copy(value)
        shown = new if isinstance(value, dict) else MappingProxyType(new)  # no more plain data than the original
        made[place] = (value, shown)
        new.clear()
        new.update(items)
        return shown
    if isinstance(value, list):
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
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(value)
    if type(value).__name__ in ("Namespace", "SimpleNamespace"):  # argparse takes long to import
        attributes: dict[str, Any] = vars(value)
        return attributes.items()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((each.name, getattr(value, each.name, None)) for each in dataclasses.fields(value))
    return None


def _has_secret_attribute(value: Any) -> bool:
    attributes = value.keywords if isinstance(value, partial) else getattr(value, "__dict__", None)
    if type(attributes) is not dict:
        return False
    return any(
        isinstance(item, Secret) or (isinstance(item, str | bytes | bytearray) and _is_secret(name))
        for name, item in attributes.items()
    )


def _at(value: Any, path: Iterable[Any]) -> Any:
    for key in path:
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
