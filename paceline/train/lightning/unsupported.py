"""Parts of Lightning that do not go with several workers, or with a run that takes the files over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.air.errors import ConfigError
from paceline.train.lightning.packages import lightning


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
