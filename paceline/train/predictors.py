"""Which predictor belongs to a checkpoint, by the class that wrote it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import ConfigError

if TYPE_CHECKING:
    from paceline.train.predictor import Predictor

_PREDICTORS = {
    "paceline.train.lightgbm.checkpoint.LightGBMCheckpoint": "paceline.train.lightgbm.predictor.LightGBMPredictor",
    "paceline.train.sklearn.checkpoint.SklearnCheckpoint": "paceline.train.sklearn.predictor.SklearnPredictor",
    "paceline.train.torch.checkpoint.TorchCheckpoint": "paceline.train.torch.predictor.TorchPredictor",
    "paceline.train.xgboost.checkpoint.XGBoostCheckpoint": "paceline.train.xgboost.predictor.XGBoostPredictor",
}
"""A name in a file selects a line of this table, and never makes anything else be imported."""


def predictor_for(checkpoint: Checkpoint) -> type[Predictor]:
    """The predictor class for a checkpoint of one of paceline's checkpoint classes, or of a class derived from one."""
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(checkpoint).__mro__]
    stored = checkpoint._metadata().class_name  # that class may not be loaded here
    for name in (*names, stored):
        if name in _PREDICTORS:
            module, _, predictor = _PREDICTORS[name].rpartition(".")
            found: type[Predictor] = getattr(importlib.import_module(module), predictor)
            return found
    written_as = f", which was saved as a {stored}," if stored is not None else ""
    known = ", ".join(sorted(name.rpartition(".")[2] for name in _PREDICTORS))
    raise ConfigError(
        f"Which predictor belongs to {checkpoint!r}{written_as} is not known: it is no {known}. Pass the class of the "
        "predictor, for example TorchPredictor."
    )
