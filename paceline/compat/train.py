"""Names of the first generation of `ray.train`, under their old paths: see `air/old_paths.py`."""

from __future__ import annotations

import os
import socket
from typing import Any, NoReturn

from paceline.air.errors import ConfigError
from paceline.engine.places import ADDRESS_VARIABLE, LOOPBACK
from paceline.train.base_trainer import BaseTrainer, TrainingFailedError
from paceline.train.trees.trainer import TreeTrainer as GBDTTrainer

__all__ = [
    "BaseTrainer",
    "GBDTTrainer",
    "TorchTensorboardProfilerCallback",
    "Trainer",
    "TrainingFailedError",
    "get_address_and_port",
]


class Trainer(BaseTrainer):
    """The `Trainer(backend=...).start().run(...)` of the first generation is not supported."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(
            "Trainer(backend=..., num_workers=...) with start(), run() and shutdown() is not supported. Write: "
            "TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()"
        )


class TorchTensorboardProfilerCallback:
    """Collected profiler traces in the driver; workers write them as files now."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(
            "TorchTensorboardProfilerCallback is not needed: TorchWorkerProfiler writes traces as files below the "
            "trial directory, and report(profiler.get_and_clear_profile_traces()) records their paths. "
            "Open them with: tensorboard --logdir <result.log_dir>"
        )


def get_address_and_port() -> tuple[str, int]:
    """Where the other workers of a run reach this one, and a port that is free there now. Backends call it on a
    worker."""
    address = os.environ.get(ADDRESS_VARIABLE, LOOPBACK)
    with socket.socket() as probe:
        probe.bind((address, 0))
        return address, int(probe.getsockname()[1])
