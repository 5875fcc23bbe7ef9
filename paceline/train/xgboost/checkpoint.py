"""XGBoostCheckpoint: a booster as a checkpoint, in XGBoost's own format."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.air.checkpoint_files import XGBOOST_MODEL
from paceline.air.constants import MODEL_KEY
from paceline.air.errors import CheckpointError, ConfigError
from paceline.train.model_checkpoint import ModelCheckpoint, ModelFile, file_names

if TYPE_CHECKING:
    import xgboost

    from paceline.air.checkpoint import Checkpoint

MODEL_FILE = "model.ubj"
_READABLE_FILES = (MODEL_FILE, "model.json", "model", XGBOOST_MODEL)
"""Ours first, then what other programs call it, and the booster of a dict checkpoint."""

C = TypeVar("C", bound="XGBoostCheckpoint")


class XGBoostCheckpoint(ModelCheckpoint):
    """A checkpoint that holds an XGBoost booster.

    The file is XGBoost's own (Universal Binary JSON): loading it runs no code. What XGBoost keeps in a
    model is kept: trees, names, types and categories of features, best_iteration and best_score. Parameters
    of the training are not part of it.
    """

    @classmethod
    def from_model(
        cls: type[C],
        booster: xgboost.Booster,
        *,
        path: str | os.PathLike[str] | None = None,
        preprocessor: Any = None,
    ) -> C:
        """A checkpoint of a booster as it is now; with `path`, written to that directory."""
        return cls._of(booster_file(booster, MODEL_FILE), preprocessor, path)

    def get_model(self) -> xgboost.Booster:
        """The booster."""
        found = self._booster()
        if found is None:
            found = self.peek(MODEL_KEY)  # never from a stored dict, which is a pickle
        if found is None:
            raise CheckpointError(
                f"{self!r} holds no XGBoost model: it has none of the files {', '.join(_READABLE_FILES[:-1])}. Save "
                "one with XGBoostCheckpoint.from_model(). One that was stored in a dict by an earlier version is "
                f"checkpoint.to_dict()[{MODEL_KEY!r}]; that unpickles, so do so only if you know where it comes from."
            )
        return found

    def _booster(self) -> xgboost.Booster | None:
        """The model in the first file that is there; None if there is none."""
        for name in _READABLE_FILES:
            content = self.read_file(name)
            if content is not None:
                return booster_from(content, f"{name} of {self!r}")
        return None

    _model_in_files = _booster


def booster_file(booster: Any, file_name: str) -> ModelFile:
    """A booster as it is now; or that of an estimator in scikit-learn's style."""
    import xgboost

    if isinstance(booster, xgboost.XGBModel):
        booster = booster.get_booster()
    if not isinstance(booster, xgboost.Booster):
        raise ConfigError(f"from_model() takes an xgboost.Booster, not {type(booster).__name__}.")
    return ModelFile(bytes(booster.save_raw("json" if file_name.endswith(".json") else "ubj")), file_name)


def booster_from(content: bytes, where: str) -> xgboost.Booster:
    """A booster from what XGBoost wrote, be it UBJSON or JSON."""
    import xgboost

    try:
        if not content:  # XGBoost ends the process at an empty file
            raise ValueError("it is empty")
        return xgboost.Booster(model_file=bytearray(content))
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{where} is damaged, or no model that this XGBoost can read: {reason}") from None


def read_booster(checkpoint: Checkpoint, file_name: str) -> xgboost.Booster:
    """The model in a file of any checkpoint."""
    content = checkpoint.read_file(file_name)
    if content is not None:
        return booster_from(content, f"{file_name} of {checkpoint!r}")
    with checkpoint.as_directory() as folder:
        raise CheckpointError(f"{checkpoint!r} has no file {file_name!r}; it has {file_names(folder)}.")
