"""TransformersConfig: the settings of the process group, for workers that know Transformers when they start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.train.torch.config import TorchConfig

if TYPE_CHECKING:
    from paceline.train.huggingface.transformers.backend import TransformersBackend


@dataclass
class TransformersConfig(TorchConfig):
    """As TorchConfig."""

    @property
    def backend_cls(self) -> type[TransformersBackend]:
        from paceline.train.huggingface.transformers.backend import TransformersBackend

        return TransformersBackend
