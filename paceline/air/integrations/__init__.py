"""Other libraries' own hooks that report to a run."""

from __future__ import annotations

from typing import NoReturn

from paceline.air.absent import no_such_name

_TRACKER = "derive a callback from tune.logger.LoggerCallback and call the tracker in its log_trial_result()"
_ADVICE = dict.fromkeys(("comet", "mlflow", "wandb"), _TRACKER)


def __getattr__(name: str) -> NoReturn:
    raise no_such_name(__name__, name, _ADVICE)
