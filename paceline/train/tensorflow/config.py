"""Settings of TensorFlow's connection between workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.run.backend import BackendConfig

if TYPE_CHECKING:
    from paceline.train.tensorflow.backend import TensorflowBackend


@dataclass
class TensorflowConfig(BackendConfig):
    """How the workers of a TensorflowTrainer are connected. TensorFlow itself has nothing to set here."""

    @property
    def backend_cls(self) -> type[TensorflowBackend]:
        from paceline.train.tensorflow.backend import TensorflowBackend

        return TensorflowBackend
