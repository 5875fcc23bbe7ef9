"""Methods that a public class has from its parts carry the name of that class in Python's own messages."""

from __future__ import annotations

import types
from typing import TypeVar

C = TypeVar("C", bound=type)


def named_after_class(cls: C) -> C:
    """Decorates a class that is put together from parts that users do not know.

    A wrong argument is then told as ``Dataset.join() got ...`` and not as ``Combining.join() got ...``. Functions
    are copied, since a part may belong to several classes.
    """
    for part in reversed(cls.__mro__[1:-1]):
        for name, method in vars(part).items():
            if isinstance(method, types.FunctionType) and not name.startswith("_") and name not in vars(cls):
                setattr(cls, name, _renamed(getattr(cls, name), cls))
    return cls


def _renamed(method: types.FunctionType, cls: type) -> types.FunctionType:
    twin = types.FunctionType(
        method.__code__, method.__globals__, method.__name__, method.__defaults__, method.__closure__
    )
    twin.__kwdefaults__ = method.__kwdefaults__
    twin.__doc__, twin.__module__, twin.__annotations__ = method.__doc__, method.__module__, method.__annotations__
    twin.__qualname__ = f"{cls.__qualname__}.{method.__name__}"
    return twin
