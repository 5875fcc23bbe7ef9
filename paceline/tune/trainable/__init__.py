"""What a Tuner can run: functions, Trainable classes and trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name

if TYPE_CHECKING:
    from paceline.tune.trainable.parameters import with_parameters as with_parameters
    from paceline.tune.trainable.resources import with_resources as with_resources
    from paceline.tune.trainable.trainable import Trainable as Trainable

_HOMES = {
    "Trainable": "paceline.tune.trainable.trainable",
    "with_parameters": "paceline.tune.trainable.parameters",
    "with_resources": "paceline.tune.trainable.resources",
}

__all__ = ["Trainable", "with_parameters", "with_resources"]


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise no_such_name(__name__, name)
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
