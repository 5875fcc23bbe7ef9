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
_CLASSES_NOT_YET = ("ResultGrid", "TuneConfig", "Tuner")
_OTHERS_NOT_YET = (
    "choice",
    "grid_search",
    "loguniform",
    "quniform",
    "randint",
    "report",
    "result_grid",
    "run",
    "sample_from",
    "schedulers",
    "search",
    "tuner",
    "uniform",
    "with_parameters",
    "with_resources",
)

__all__ = ["Callback", "PlacementGroupFactory", "Stopper", "SyncConfig"]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"paceline.tune.{name}")
    absent = (
        f"paceline.tune.{name} is not in this version; what there is: {', '.join(_HOMES)} and the modules "
        f"{', '.join(_MODULES)}. To train with one configuration use a trainer of paceline.train."
    )
    if name in _CLASSES_NOT_YET:
        # Of an AttributeError, `from paceline.tune import Tuner` would drop the text.
        raise ImportError(absent, name=__name__)
    if name in _OTHERS_NOT_YET:
        # No ImportError: pickle looks in every module for functions without one, such as torch.randint.
        raise AttributeError(absent)
    raise AttributeError(f"module 'paceline.tune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
