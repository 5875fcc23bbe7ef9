"""An older path to BaseTrainer, and the answer to the oldest trainer of all."""

from __future__ import annotations

from typing import Any, NoReturn

from paceline.air.absent import advise
from paceline.air.errors import ConfigError
from paceline.train.base_trainer import BaseTrainer, TrainingFailedError

__all__ = ["BaseTrainer", "Trainer", "TrainingFailedError"]


class Trainer(BaseTrainer):
    """The `Trainer(backend=...).start().run(...)` of the first generation is not supported."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(
            "Trainer(backend=..., num_workers=...) with start(), run() and shutdown() is not supported. Write: "
            "TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()"
        )


advise(__name__, {"TrainingIterator": "Trainer.fit() returns the Result; RunConfig(callbacks=[...]) sees each report"})
