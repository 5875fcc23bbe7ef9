"""Callbacks of the first generation: refused with what to write today."""

from __future__ import annotations

from typing import Any, NoReturn

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
