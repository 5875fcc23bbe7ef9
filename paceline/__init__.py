"""Distributed training on one machine or many, with results you can trust.

Everything is reached from here on first use, so that ``import paceline`` stays cheap:
the packages (``paceline.air``, ``paceline.train.torch``, ...), ``Secret``, and ``init``,
``shutdown``, ``is_initialized``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.absent import install, no_such_name

if TYPE_CHECKING:
    import paceline.air as air
    import paceline.data as data
    import paceline.serve as serve
    import paceline.train as train
    import paceline.tune as tune
    from paceline.air.secrets import Secret as Secret
    from paceline.engine.choose import init as init
    from paceline.engine.choose import is_initialized as is_initialized
    from paceline.engine.choose import shutdown as shutdown

__version__ = "0.1.0"

__all__ = ["Secret", "air", "data", "init", "is_initialized", "serve", "shutdown", "train", "tune"]

_PACKAGES = ("air", "cli", "compat", "data", "engine", "ray", "run", "serve", "storage", "testing", "train", "tune")
_HOMES = {
    "Secret": "paceline.air.secrets",
    "init": "paceline.engine.choose",
    "is_initialized": "paceline.engine.choose",
    "shutdown": "paceline.engine.choose",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return importlib.import_module(f"paceline.{name}")
    from paceline.air.core_names import ADVICE

    raise no_such_name(__name__, name, ADVICE)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PACKAGES, *_HOMES])


install()  # import statements say what to write instead of a name that does not exist
