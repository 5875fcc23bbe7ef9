"""LightningBackend: TorchBackend for workers that are forked with Lightning loaded."""

from __future__ import annotations

from typing import ClassVar

from paceline.train.torch.backend import TorchBackend


class LightningBackend(TorchBackend):
    """Lightning's import takes as long as PyTorch's: it is paid once, while the user's own program goes on."""

    preload: ClassVar[tuple[str, ...]] = (
        *TorchBackend.preload,
        "lightning.pytorch",
        "paceline.train.lightning.for_lightning",
        "paceline.train.lightning.loop",
    )


class PytorchLightningBackend(TorchBackend):
    """The same for modules of the older package."""

    preload: ClassVar[tuple[str, ...]] = (
        *TorchBackend.preload,
        "pytorch_lightning",
        "paceline.train.lightning.for_pytorch_lightning",
        "paceline.train.lightning.loop",
    )
