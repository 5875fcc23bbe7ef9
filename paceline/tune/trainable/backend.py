"""Functions and Trainable classes need no connection between workers: there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.run.backend import Backend, BackendConfig


class TrainableBackend(Backend):
    """Has the modules that every such trial needs loaded before it is forked."""

    preload: ClassVar[tuple[str, ...]] = (
        "paceline.tune.trainable.function",
        "paceline.tune.trainable.class_loop",
        "paceline.tune.trainable.legacy_session",
    )


@dataclass
class TrainableBackendConfig(BackendConfig):
    """There is nothing to set."""

    @property
    def backend_cls(self) -> type[Backend]:
        return TrainableBackend
