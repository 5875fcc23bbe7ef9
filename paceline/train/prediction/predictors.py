"""Which predictor belongs to a checkpoint, by the class that wrote it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from paceline.air.checkpoint import Checkpoint
from paceline.air.errors import ConfigError
from paceline.air.plugins import plugin

if TYPE_CHECKING:
    from paceline.train.predictor import Predictor


_PREDICTORS = {
    "paceline.train.huggingface.transformers.checkpoint.TransformersCheckpoint": (
        "paceline.train.huggingface.transformers.predictor.TransformersPredictor"
    ),
    "paceline.train.lightgbm.checkpoint.LightGBMCheckpoint": "paceline.train.lightgbm.predictor.LightGBMPredictor",
    "paceline.train.lightning.checkpoint.LightningCheckpoint": "paceline.train.lightning.predictor.LightningPredictor",
    "paceline.train.rl.checkpoint.RLCheckpoint": "paceline.train.rl.predictor.RLPredictor",
    "paceline.train.sklearn.checkpoint.SklearnCheckpoint": "paceline.train.sklearn.predictor.SklearnPredictor",
    "paceline.train.tensorflow.checkpoint.TensorflowCheckpoint": (
        "paceline.train.tensorflow.predictor.TensorflowPredictor"
    ),
    "paceline.train.torch.checkpoint.TorchCheckpoint": "paceline.train.torch.predictor.TorchPredictor",
    "paceline.train.xgboost.checkpoint.XGBoostCheckpoint": "paceline.train.xgboost.predictor.XGBoostPredictor",
}
"""A name in a file selects a line of this table, or an entry point of `paceline.predictors` that an installed package
has registered for the class of that name. It never makes anything else be imported."""


def predictor_for(checkpoint: Checkpoint) -> type[Predictor]:
    """The predictor class for a checkpoint of a class that has one, or of a class derived from such a class."""
    found = _predictor_of(checkpoint)
    if found is not None:
        return found
    stored = checkpoint.written_as
    written_as = f", which was saved as a {stored}," if stored is not None else ""
    known = ", ".join(sorted(name.rpartition(".")[2] for name in _PREDICTORS))
    own = next(iter(_of_others([*_names(type(checkpoint)), *([stored] if stored is not None else [])])), None)
    key = f" A package can register one as an entry point of paceline.predictors, with the key {own!r}." if own else ""
    raise ConfigError(
        f"Which predictor belongs to {checkpoint!r}{written_as} is not known: it is not a {known}. Pass the class of "
        f"the predictor, for example TorchPredictor.{key}"
    )


def check_belongs_together(predictor: type[Predictor], checkpoint: Checkpoint) -> None:
    """Refuse one of paceline's predictors for a checkpoint that is known to belong to another one."""
    if not set(_PREDICTORS.values()).intersection(_names(predictor)):
        return
    wanted = _predictor_of(checkpoint)
    if wanted is None or issubclass(predictor, wanted):
        return
    right = wanted.__name__
    raise ConfigError(
        f"{predictor.__name__} cannot predict with {checkpoint!r}: {right} does. Pass {right}, or leave the class out."
    )


def _predictor_of(checkpoint: Checkpoint) -> type[Predictor] | None:
    stored = checkpoint.written_as  # that class may not be loaded here
    names = [name for name in (*_names(type(checkpoint)), stored) if name is not None]
    known = next((_PREDICTORS[name] for name in names if name in _PREDICTORS), None)
    if known is not None:
        module, _, predictor = known.rpartition(".")
        found: type[Predictor] = getattr(importlib.import_module(module), predictor)
        return found
    return next((kind for name in _of_others(names) if (kind := _registered(name)) is not None), None)


def _of_others(names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith(("paceline.", "builtins."))]


def _registered(name: str) -> type[Predictor] | None:
    """The predictor that a package has registered for the checkpoint class of this name."""
    from paceline.train.predictor import Predictor

    found = plugin("predictors", name)
    if found is None or (isinstance(found, type) and issubclass(found, Predictor)):
        return found
    raise ConfigError(f"{name!r} of paceline.predictors stands for {found!r}, which is not a Predictor class.")


def _names(of: type) -> list[str]:
    """The full names of a class and of those that it is derived from."""
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in of.__mro__]
