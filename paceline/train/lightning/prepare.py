"""prepare_trainer: a last look at a Lightning Trainer before it trains."""

from __future__ import annotations

from typing import Any

from paceline.air.errors import ConfigError
from paceline.train.lightning.environment import worker_session
from paceline.train.lightning.packages import package_of
from paceline.train.lightning.strategies import WorkerStrategy, check_environment
from paceline.train.lightning.unsupported import check_callbacks


def prepare_trainer(trainer: Any) -> Any:
    """The Lightning Trainer itself, if it is one that can train together with the other workers.

    What would have to be changed is told as a ConfigError.
    """
    package = package_of(type(trainer))
    if package is None or not hasattr(trainer, "strategy"):
        raise ConfigError(f"prepare_trainer() takes a lightning.pytorch.Trainer, not {type(trainer).__name__}.")
    worker_session("prepare_trainer()")
    strategy = trainer.strategy
    if not isinstance(strategy, WorkerStrategy):
        raise ConfigError(
            f"The Lightning Trainer has the strategy {type(strategy).__name__}, which does not know the workers: make "
            "it with Trainer(strategy=paceline.train.lightning.DDPStrategy(), "
            "plugins=[paceline.train.lightning.LightningEnvironment()], ...). There are FSDPStrategy and "
            "DeepSpeedStrategy too."
        )
    check_environment(strategy)
    check_accelerator(trainer)
    check_callbacks(trainer.callbacks, package)
    return trainer


def check_accelerator(trainer: Any) -> None:
    """A worker computes on the devices that it was given, and Lightning chooses by what the machine has."""
    chosen = type(trainer.accelerator).__name__
    device = trainer.strategy.root_device.type
    if chosen in ("CPUAccelerator", "CUDAAccelerator") and (chosen == "CPUAccelerator") != (device == "cpu"):
        right = "cpu" if device == "cpu" else "gpu"
        raise ConfigError(
            f"The Lightning Trainer has a {chosen}, and this worker was given a {right.upper()}: make it with "
            f"Trainer(accelerator={right!r}, ...), or change ScalingConfig(use_gpu=...)."
        )
