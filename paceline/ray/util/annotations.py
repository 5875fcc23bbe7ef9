"""Ray's marks for classes and functions. They say something to readers and change nothing."""

from __future__ import annotations

from typing import Any


def _mark(*args: Any, **details: Any) -> Any:
    """Works as ``@mark`` and as ``@mark(stability="beta")``."""
    if len(args) == 1 and not details and callable(args[0]):
        return args[0]
    return lambda marked: marked


DeveloperAPI = PublicAPI = Deprecated = _mark
