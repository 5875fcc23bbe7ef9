"""Settings of TensorFlow's connection between workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.air.keywords import names_what_was_meant
from paceline.run.backend import BackendConfig

if TYPE_CHECKING:
    from paceline.train.tensorflow.backend import TensorflowBackend


@names_what_was_meant()
@dataclass
class TensorflowConfig(BackendConfig):
    """How the workers of a TensorflowTrainer are connected. TensorFlow itself has nothing to set here."""

    @property
    def backend_cls(self) -> type[TensorflowBackend]:
        from paceline.train.tensorflow.backend import TensorflowBackend

        return TensorflowBackend

    def notes(self, world_size: int) -> list[str]:
        if world_size == 1:
            return []
        return [
            "TensorFlow's gRPC servers listen on all network interfaces of this machine until the run ends, and ask "
            "for no password: keep others away with a firewall, or train where you trust the network."
        ]
