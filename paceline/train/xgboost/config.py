"""Settings of XGBoost's connection between workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.air.errors import ConfigError
from paceline.air.keywords import names_what_was_meant
from paceline.run.backend import BackendConfig

if TYPE_CHECKING:
    from paceline.train.xgboost.backend import XGBoostBackend


@names_what_was_meant()
@dataclass
class XGBoostConfig(BackendConfig):
    """How the workers of an XGBoostTrainer are connected."""

    timeout_s: float = 1800
    """How long a worker waits for the others in one exchange, while they compute, before it fails. A worker that
    died is noticed at once."""

    def __post_init__(self) -> None:
        number = isinstance(self.timeout_s, int | float) and not isinstance(self.timeout_s, bool)
        if not number or not 1 <= self.timeout_s < float("inf"):
            raise ConfigError(
                f"XGBoostConfig(timeout_s={self.timeout_s!r}): give a number of seconds of at least 1, e.g. 1800."
            )

    @property
    def backend_cls(self) -> type[XGBoostBackend]:
        from paceline.train.xgboost.backend import XGBoostBackend

        return XGBoostBackend


@dataclass
class XGBoostLoopConfig(XGBoostConfig):
    """The same for workers that are given parameters, not a function of the user's."""

    @property
    def backend_cls(self) -> type[XGBoostBackend]:
        from paceline.train.xgboost.backend import XGBoostLoopBackend

        return XGBoostLoopBackend
