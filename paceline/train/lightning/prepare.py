"""prepare_trainer: a last look at a Lightning Trainer before it trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.air.errors import ConfigError
from paceline.air.session import active
from paceline.train.lightning.packages import lightning, package_of
from paceline.train.lightning.strategies import WorkerStrategy, check_environment, whose, worker_session


def prepare_trainer(trainer: Any) -> Any:
    """The Lightning Trainer itself, if it is one that can train together with the other workers.

    What would have to be changed is told as a ConfigError.
    """
    package = package_of(type(trainer))
    if package is None or not hasattr(trainer, "strategy"):
        raise ConfigError(f"prepare_trainer() takes a lightning.pytorch.Trainer, not {type(trainer).__name__}.")
    worker_session("prepare_trainer()")
    _check_strategy(trainer.strategy)
    check_accelerator(trainer)
    check_callbacks(trainer.callbacks, package)
    return trainer


def check_ranks(trainer: Any) -> None:
    """For a Trainer that nobody prepared: one that takes its worker for the only one trains a model of its own.

    A strategy of the user's own that knows the ranks may have them from elsewhere.
    """
    session = active()
    if session.world_size == 1:
        return
    if (trainer.world_size, trainer.global_rank) != (session.world_size, session.world_rank):
        _check_strategy(trainer.strategy)


def _check_strategy(strategy: Any) -> None:
    if not isinstance(strategy, WorkerStrategy):
        raise ConfigError(
            f"The Lightning Trainer has the strategy {whose(strategy)}, which does not know the workers: make it with "
            "Trainer(strategy=paceline.train.lightning.DDPStrategy(), "
            "plugins=[paceline.train.lightning.LightningEnvironment()], ...). There are FSDPStrategy and "
            "DeepSpeedStrategy too."
        )
    check_environment(strategy)


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


def check_callbacks(callbacks: Iterable[Any], package: str) -> None:
    """Saving is done by all ranks together: one that has failed would wait for the others, and they for it."""
    known = lightning(package).callbacks
    for each in callbacks:
        saves_on_exception = isinstance(each, known.ModelCheckpoint) and getattr(each, "save_on_exception", False)
        if saves_on_exception or isinstance(each, known.OnExceptionCheckpoint):
            refuse_saving_on_exception(f"callbacks=[{type(each).__name__}(...)]")


def refuse_saving_on_exception(where: str) -> None:
    raise ConfigError(
        f"{where} would save when a worker fails, which waits for the other workers for ever. A run goes on from its "
        "last checkpoint with RunConfig(failure_config=FailureConfig(max_failures=...)); to lose less, save more often "
        "with ModelCheckpoint's every_n_train_steps=...."
    )


def check_checkpoint_io(plugin: Any, package: str) -> None:
    """The run reads a file as soon as Lightning has saved it."""
    if isinstance(plugin, lightning(f"{package}.plugins.io").AsyncCheckpointIO):
        raise ConfigError(
            "AsyncCheckpointIO has not written a checkpoint yet when the run takes it over. Leave it out: "
            "RunConfig(checkpoint_config=CheckpointConfig(async_save=True)) saves in the background."
        )
