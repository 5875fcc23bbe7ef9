"""How the workers of a LightningTrainer are connected: as those of a TorchTrainer, with Lightning loaded."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.train.chosen_config import chosen_config, config_as
from paceline.train.lightning.packages import LIGHTNING, PYTORCH_LIGHTNING
from paceline.train.torch.backend import TorchBackend
from paceline.train.torch.config import TorchConfig


@dataclass
class LightningTorchConfig(TorchConfig):
    """A TorchConfig that knows which package of Lightning's the module is of."""

    package: str = LIGHTNING

    @property
    def backend_cls(self) -> type[TorchBackend]:
        from paceline.train.lightning.backend import LightningBackend, PytorchLightningBackend

        return PytorchLightningBackend if self.package == PYTORCH_LIGHTNING else LightningBackend


def backend_config(torch_config: object, package: str) -> TorchConfig:
    """The user's config, with the package; one of a class of their own stays as it is."""
    chosen = chosen_config("LightningTrainer", TorchConfig, torch_config=torch_config)
    if type(chosen) is not TorchConfig:
        return chosen
    return config_as(LightningTorchConfig, chosen, package=package)
