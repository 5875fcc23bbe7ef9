"""Old path of ``paceline.train.base_trainer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.train.base_trainer import BaseTrainer as BaseTrainer
    from paceline.train.base_trainer import TrainingFailedError as TrainingFailedError


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from paceline.train import base_trainer

    return getattr(base_trainer, name)
