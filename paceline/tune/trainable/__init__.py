"""What a Tuner can run: functions, Trainable classes and trainers."""

from __future__ import annotations

from paceline.air.lazy import lazy_imports

_ADVICE = {
    "FuncCheckpointUtil": "session.report(metrics, checkpoint=...) keeps the checkpoints of a function",
    "Session": "paceline.train.get_context() and the functions of paceline.air.session answer inside of a trial",
    "TrainableUtil": "Checkpoint.from_directory(path) reads a checkpoint; Result.checkpoint is the newest one",
}

with lazy_imports(__name__, advice=_ADVICE):
    from paceline.tune.trainable.parameters import with_parameters as with_parameters
    from paceline.tune.trainable.parameters import with_resources as with_resources
    from paceline.tune.trainable.trainable import FunctionTrainable as FunctionTrainable
    from paceline.tune.trainable.trainable import Trainable as Trainable
    from paceline.tune.trainable.trainable import wrap_function as wrap_function
