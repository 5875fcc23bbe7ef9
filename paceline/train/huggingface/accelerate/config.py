"""Settings of the process group together with those of Accelerate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.train.torch import TorchConfig

if TYPE_CHECKING:
    from paceline.train.huggingface.accelerate.backend import AccelerateBackend


@dataclass
class AccelerateConfig(TorchConfig):
    """How the workers of an AccelerateTrainer are connected, and what their Accelerator finds; made by the trainer."""

    settings: dict[str, Any] = field(default_factory=dict)
    """The content of a file of `accelerate config`, read and checked."""
    source: str = "accelerate_config"
    """Where the settings are from, for messages."""

    @property
    def backend_cls(self) -> type[AccelerateBackend]:
        from paceline.train.huggingface.accelerate.backend import AccelerateBackend

        return AccelerateBackend
