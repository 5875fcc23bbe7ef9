"""Calls of methods that users write, by the names of the arguments.

So `on_trial_result(self, **info)` and `on_step_end(self, trials, **info)` work. A method whose author has given the
arguments names of their own still gets them in their order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.air.errors import ConfigError

Call = Callable[[Mapping[str, Any]], Any]
"""Takes the arguments by name, in their order."""


def keyword_call(method: Callable[..., Any], names: Sequence[str], least: int | None = None) -> Call:
    """How to call `method` with arguments of these names.

    Only the first `least` of them must be taken: the others are left out, from the last on, where the method has no
    place for them. ConfigError if there is no way.
    """
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # some callables of extension modules do not say
        return lambda arguments: method(**arguments)
    fewest = len(names) if least is None else least
    for count in range(len(names), fewest - 1, -1):
        chosen = names[:count]
        if _binds(signature, (), chosen):
            return lambda arguments: method(**{name: arguments[name] for name in chosen})
        if _keeps_order(signature, chosen) and _binds(signature, chosen, ()):
            return lambda arguments: method(*(arguments[name] for name in chosen))
    shown = getattr(method, "__qualname__", repr(method))
    raise ConfigError(
        f"{shown}{signature} is called with {', '.join(f'{name}=...' for name in names)}. Write "
        f"`def {getattr(method, '__name__', 'f')}(self, {', '.join(names)}, **info)`; **info alone takes what you do "
        "not name."
    )


def _binds(signature: inspect.Signature, positional: Sequence[str], keywords: Sequence[str]) -> bool:
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError:
        return False
    return True


def _keeps_order(signature: inspect.Signature, names: Sequence[str]) -> bool:
    """Whether every name that the method shares with `names` stands in the same place: else order misleads."""
    return all(
        name not in names or (place < len(names) and names[place] == name)
        for place, name in enumerate(signature.parameters)
    )
