"""TransformersConfig: the settings of the process group, for workers that know Transformers when they start."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from paceline.train.torch.config import TorchConfig

if TYPE_CHECKING:
    from paceline.train.huggingface.transformers.backend import TransformersBackend


@dataclass
class TransformersConfig(TorchConfig):
    """As TorchConfig."""

    @classmethod
    def like(cls, given: TorchConfig) -> TransformersConfig:
        """With the settings of a TorchConfig."""
        return cls(**{field.name: getattr(given, field.name) for field in fields(TorchConfig)})

    @property
    def backend_cls(self) -> type[TransformersBackend]:
        from paceline.train.huggingface.transformers.backend import TransformersBackend

        return TransformersBackend
