"""How the workers of a LightGBMTrainer are connected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.air.keywords import names_what_was_meant
from paceline.run.backend import BackendConfig

if TYPE_CHECKING:
    from paceline.train.lightgbm.backend import LightGBMBackend


@names_what_was_meant()
@dataclass
class LightGBMConfig(BackendConfig):
    """There is nothing to set: addresses and ports are found at the start of every attempt."""

    @property
    def backend_cls(self) -> type[LightGBMBackend]:
        from paceline.train.lightgbm.backend import LightGBMBackend

        return LightGBMBackend


@dataclass
class LightGBMLoopConfig(LightGBMConfig):
    """The same for workers that are given parameters, not a function of the user's."""

    @property
    def backend_cls(self) -> type[LightGBMBackend]:
        from paceline.train.lightgbm.backend import LightGBMLoopBackend

        return LightGBMLoopBackend
