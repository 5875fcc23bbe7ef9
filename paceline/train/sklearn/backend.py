"""What a worker that fits a scikit-learn estimator has loaded when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.run.backend import Backend, BackendConfig


class SklearnBackend(Backend):
    """There is one worker, so nothing is to be connected."""

    preload: ClassVar[tuple[str, ...]] = (
        "paceline.train.sklearn.trainer",
        "paceline.data.dataset",
        "sklearn.model_selection",
        "skops.io",
    )


@dataclass
class SklearnConfig(BackendConfig):
    """Has no settings."""

    @property
    def backend_cls(self) -> type[Backend]:
        return SklearnBackend
