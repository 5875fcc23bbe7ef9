"""Callbacks by which frameworks report from inside of a function trainable."""

from __future__ import annotations

from typing import NoReturn

from paceline.air.absent import no_such_name

_TRACKER = "derive a callback from tune.logger.LoggerCallback and call the tracker in its log_trial_result()"
_ADVICE = {
    "comet": _TRACKER,
    "mlflow": _TRACKER,
    "mxnet": "Apache MXNet is retired; report by session.report() in a batch or epoch callback of your own",
    "torch": "a TorchTrainer as the trainable of tune.Tuner trains each trial on several workers",
    "wandb": _TRACKER,
}


def __getattr__(name: str) -> NoReturn:
    raise no_such_name(__name__, name, _ADVICE)
