"""The experiment behind a Tuner: many runs in one event loop. Names of the older API are loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name

if TYPE_CHECKING:
    from paceline.run.trial import Trial as Trial
    from paceline.tune.legacy_experiment import Experiment as Experiment

_HOMES = {"Experiment": "paceline.tune.legacy_experiment", "Trial": "paceline.run.trial"}

__all__ = ["Experiment", "Trial"]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise no_such_name(__name__, name)
