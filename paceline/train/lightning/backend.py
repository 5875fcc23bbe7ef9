"""LightningBackend: TorchBackend for workers that are forked with Lightning loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.train.arguments import chosen_config, config_as
from paceline.train.lightning.packages import LIGHTNING, PYTORCH_LIGHTNING
from paceline.train.torch.backend import TorchBackend, TorchConfig


class LightningBackend(TorchBackend):
    """Lightning's import takes as long as PyTorch's: it is paid once, while the user's own program goes on."""

    joins_uneven: ClassVar[bool] = False  # Lightning wraps the model itself
    preload: ClassVar[tuple[str, ...]] = (
        *TorchBackend.preload,
        "lightning.pytorch",
        "paceline.train.lightning.for_lightning",
        "paceline.train.lightning.loop",
    )


class PytorchLightningBackend(TorchBackend):
    """The same for modules of the older package."""

    joins_uneven: ClassVar[bool] = False  # Lightning wraps the model itself
    preload: ClassVar[tuple[str, ...]] = (
        *TorchBackend.preload,
        "pytorch_lightning",
        "paceline.train.lightning.for_pytorch_lightning",
        "paceline.train.lightning.loop",
    )


@dataclass
class LightningTorchConfig(TorchConfig):
    """A TorchConfig that knows which package of Lightning's the module is of."""

    package: str = LIGHTNING

    @property
    def backend_cls(self) -> type[TorchBackend]:
        return PytorchLightningBackend if self.package == PYTORCH_LIGHTNING else LightningBackend


def backend_config(torch_config: object, package: str) -> TorchConfig:
    """The user's config, with the package; one of a class of their own stays as it is."""
    chosen = chosen_config("LightningTrainer", TorchConfig, torch_config=torch_config)
    if type(chosen) is not TorchConfig:
        return chosen
    return config_as(LightningTorchConfig, chosen, package=package)
