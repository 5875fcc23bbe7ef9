"""What a Tuner can run: functions, Trainable classes and trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name

if TYPE_CHECKING:
    from paceline.tune.trainable.function_trainable import FunctionTrainable as FunctionTrainable
    from paceline.tune.trainable.function_trainable import wrap_function as wrap_function
    from paceline.tune.trainable.parameters import with_parameters as with_parameters
    from paceline.tune.trainable.resources import with_resources as with_resources
    from paceline.tune.trainable.trainable import Trainable as Trainable

_HOMES = {
    "FunctionTrainable": "paceline.tune.trainable.function_trainable",
    "Trainable": "paceline.tune.trainable.trainable",
    "with_parameters": "paceline.tune.trainable.parameters",
    "with_resources": "paceline.tune.trainable.resources",
    "wrap_function": "paceline.tune.trainable.function_trainable",
}
_ADVICE = {
    "FuncCheckpointUtil": "session.report(metrics, checkpoint=...) keeps the checkpoints of a function",
    "Session": "paceline.train.get_context() and the functions of paceline.air.session answer inside of a trial",
    "TrainableUtil": "Checkpoint.from_directory(path) reads a checkpoint; Result.checkpoint is the newest one",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise no_such_name(__name__, name, _ADVICE)
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
