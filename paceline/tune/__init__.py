"""Names that code ported from a tuning library looks for here; each is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.air.config import SyncConfig as SyncConfig
    from paceline.air.resources import PlacementGroupFactory as PlacementGroupFactory
    from paceline.run.callbacks import Callback as Callback
    from paceline.run.stoppers import Stopper as Stopper

_HOMES = {
    "Callback": "paceline.tune.callback",
    "PlacementGroupFactory": "paceline.air.resources",
    "Stopper": "paceline.tune.stopper",
    "SyncConfig": "paceline.air.config",
}
_MODULES = ("callback", "logger", "stopper")

__all__ = ["Callback", "PlacementGroupFactory", "Stopper", "SyncConfig"]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"paceline.tune.{name}")
    raise AttributeError(f"module 'paceline.tune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
