"""How the workers of a LightningTrainer are connected: as those of a TorchTrainer, with Lightning loaded."""

from __future__ import annotations

from dataclasses import dataclass, fields

from paceline.air.errors import ConfigError
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
    if torch_config is None:
        return LightningTorchConfig(package=package)
    if not isinstance(torch_config, TorchConfig):
        raise ConfigError(f"LightningTrainer(torch_config=...) takes a TorchConfig, not {type(torch_config).__name__}.")
    if type(torch_config) is not TorchConfig:
        return torch_config
    chosen = {each.name: getattr(torch_config, each.name) for each in fields(TorchConfig)}
    return LightningTorchConfig(**chosen, package=package)
