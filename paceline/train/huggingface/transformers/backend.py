"""TransformersBackend: a process group of PyTorch whose workers have Transformers loaded already."""

from __future__ import annotations

from typing import ClassVar

from paceline.train.torch.backend import TorchBackend


class TransformersBackend(TorchBackend):
    """What a `transformers.Trainer` pulls in takes seconds to import: the workers share one import of it."""

    preload: ClassVar[tuple[str, ...]] = (
        *TorchBackend.preload,
        "paceline.train.huggingface.transformers.preloaded",
    )
