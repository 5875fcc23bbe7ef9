"""Callbacks of the first generation: refused with what to write today."""

from __future__ import annotations

from typing import Any, NoReturn

from paceline.air.absent import advise
from paceline.air.errors import ConfigError

__all__ = ["TorchTensorboardProfilerCallback"]


class TorchTensorboardProfilerCallback:
    """Collected profiler traces in the driver; workers write them as files now."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(
            "TorchTensorboardProfilerCallback is not needed: TorchWorkerProfiler writes traces as files below the "
            "trial directory, and report(profiler.get_and_clear_profile_traces()) records their paths. "
            "Open them with: tensorboard --logdir <result.log_dir>"
        )


_LOGGERS = "a run writes its rows as JSON, CSV and for TensorBoard by itself"
advise(
    __name__,
    {
        "JsonLoggerCallback": _LOGGERS,
        "MLflowLoggerCallback": "derive a callback from paceline.tune.logger.LoggerCallback and call MLflow in its "
        "log_trial_result()",
        "PrintCallback": "a run shows its progress by itself; to print each row, pass RunConfig(callbacks=[...]) a "
        "paceline.tune.Callback with on_trial_result()",
        "TBXLoggerCallback": _LOGGERS,
        "TrainingCallback": "derive it from paceline.tune.Callback and pass it in RunConfig(callbacks=[...])",
    },
)
