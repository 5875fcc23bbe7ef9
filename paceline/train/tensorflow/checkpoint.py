"""TensorflowCheckpoint: a Keras model as a checkpoint, in a format of Keras' own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.air.checkpoint import Checkpoint
from paceline.air.constants import MODEL_KEY
from paceline.air.errors import CheckpointError, CheckpointNotFoundError, ConfigError
from paceline.air.temporary import temporary_directory
from paceline.train.model_checkpoint import ModelCheckpoint, ModelFile
from paceline.train.tensorflow import keras_files
from paceline.train.tensorflow.keras_files import H5_FILE, H5_WEIGHTS_FILE, KERAS_FILE

if TYPE_CHECKING:
    import tensorflow as tf

WEIGHTS_KEYS = ("model_weights", MODEL_KEY)
"""Where a dict checkpoint has the list that `model.get_weights()` gave."""

_NEEDS_MODEL = (
    "This checkpoint holds weights but no model. Pass a function that builds the model, or the model: "
    "checkpoint.get_model(build_model)."
)

C = TypeVar("C", bound="TensorflowCheckpoint")


class TensorflowCheckpoint(ModelCheckpoint):
    """A checkpoint that holds a Keras model.

    `from_model` writes Keras' own format (a .keras file): weights, optimizer, and what the model is made of. Such a
    file, an HDF5 file or a SavedModel is loaded by the Keras that wrote it, tf_keras or Keras 3. Code in a file (Lambda
    layers, functions and classes of other modules) is refused unless you ask for it, and so is a SavedModel, which is
    a program of TensorFlow as a whole. The weights in a dict checkpoint are a pickle, and `get_model(model)` unpickles
    it.
    """

    @classmethod
    def from_model(cls: type[C], model: tf.keras.Model, *, preprocessor: Any = None) -> C:
        """A checkpoint of a whole model as it is now.

        Under a strategy of several workers every rank calls this, as every rank reports: to read a variable that
        differs between workers (the moving averages of a BatchNormalization) TensorFlow asks all of them.
        """
        if keras_files.keras_of(model) is None:
            raise ConfigError(f"from_model() takes a Keras model, not {type(model).__name__}.")
        with temporary_directory() as folder:
            path = folder / KERAS_FILE
            keras_files.save_model(model, path)
            return cls._of(ModelFile(path.read_bytes(), KERAS_FILE), preprocessor)

    @classmethod
    def from_keras(cls: type[C], file_path: str | os.PathLike[str], *, preprocessor: Any = None) -> C:
        """A checkpoint of a .keras file, as it is now."""
        return cls._of(ModelFile(_content(file_path, ".keras", "from_keras"), KERAS_FILE), preprocessor)

    @classmethod
    def from_h5(cls: type[C], file_path: str | os.PathLike[str], *, preprocessor: Any = None) -> C:
        """A checkpoint of an HDF5 file, as it is now: a whole model, or weights alone."""
        content = _content(file_path, ".h5", "from_h5")
        name = H5_WEIGHTS_FILE if os.fspath(file_path).endswith(".weights.h5") else H5_FILE
        return cls._of(ModelFile(content, name), preprocessor)

    @classmethod
    def from_saved_model(cls: type[C], dir_path: str | os.PathLike[str], *, preprocessor: Any = None) -> C:
        """A checkpoint of a SavedModel directory, as it is now.

        The SavedModel is at the root of the checkpoint, so that `tf.keras.models.load_model(checkpoint_dir)` finds it.
        """
        if not Path(dir_path, "saved_model.pb").is_file():
            raise CheckpointNotFoundError(
                f"from_saved_model({os.fspath(dir_path)!r}): there is no SavedModel, a directory with a file "
                "saved_model.pb. A file of Keras is read by from_keras() or from_h5()."
            )
        with temporary_directory() as folder:
            shutil.copytree(dir_path, folder, dirs_exist_ok=True)
            for pattern in ("*.keras", "*.h5"):  # would be taken for the model of the checkpoint
                for beside in folder.glob(pattern):
                    beside.unlink()
            packed = cls.from_bytes(Checkpoint.from_directory(folder).to_bytes())
        return cls._of(packed._source, preprocessor)

    def get_model(
        self,
        model: tf.keras.Model | Callable[[], tf.keras.Model] | None = None,
        *,
        custom_objects: Mapping[str, Any] | None = None,
        compile: bool = True,
        safe_mode: bool = True,
    ) -> Any:
        """The model. The weights are loaded into `model`, if it is given: a Keras model or a function that builds one.

        `custom_objects`, `compile` and `safe_mode` are those of Keras' load_model. A SavedModel needs
        ``safe_mode=False``; one that was not saved by tf_keras is what `tf.saved_model.load` gives.
        """
        if self._weights_in_memory() is None:
            with self.as_directory() as folder:
                path = keras_files.find_model(Path(folder))
                if path is not None and model is None:
                    if keras_files.is_weights_only(path):
                        raise ConfigError(_NEEDS_MODEL)
                    return keras_files.load_model(path, custom_objects, compile, safe_mode)
                if path is not None:
                    model = keras_files.built(model, "get_model()")
                    keras_files.load_weights(path, model, safe_mode)
                    return model
        return self._with_weights_of_dict(model)

    def _model_in_files(self) -> Any:
        """Where there is a whole model that is loaded without trust, which a SavedModel never is."""
        with self.as_directory() as folder:
            path = keras_files.find_model(Path(folder))
            safe = path is not None and path.is_file() and not keras_files.is_weights_only(path)
        return self.get_model() if safe else None

    def _weights_in_memory(self) -> Any:
        return next((self.peek(key) for key in WEIGHTS_KEYS if self.peek(key) is not None), None)

    def _with_weights_of_dict(self, model: Any) -> Any:
        """For a checkpoint of the user's own making, with the list of weights in its dict."""
        if model is None and self._weights_in_memory() is None:  # nothing is unpickled only to say what is missing
            raise CheckpointError(
                f"{self!r} holds no model: it has no .keras file, HDF5 file or SavedModel. If its dict has weights, "
                "pass a function that builds the model, or the model: checkpoint.get_model(build_model). Save whole "
                "models with TensorflowCheckpoint.from_model()."
            )
        data = super().to_dict()
        weights: Any = next((data[key] for key in WEIGHTS_KEYS if key in data), None)
        if keras_files.keras_of(weights) is not None:  # a whole model, in this process
            if model is None:
                return weights
            weights = weights.get_weights()
        if weights is None:
            raise CheckpointError(
                f"{self!r} holds no model: it has no .keras file, HDF5 file or SavedModel, and no item "
                f"{' or '.join(repr(key) for key in WEIGHTS_KEYS)}. Save one with TensorflowCheckpoint.from_model()."
            )
        if model is None:
            raise ConfigError(_NEEDS_MODEL)
        model = keras_files.built(model, "get_model()")
        try:
            model.set_weights(weights)
        except ValueError as error:
            raise CheckpointError(f"The weights of {self!r} do not fit the model: {error}") from error
        return model


def _content(path: str | os.PathLike[str], suffix: str, taker: str) -> bytes:
    if not Path(path).is_file():
        raise CheckpointNotFoundError(f"{taker}({os.fspath(path)!r}): there is no such file.")
    if Path(path).suffix != suffix:
        raise ConfigError(f"{taker}({os.fspath(path)!r}) takes a file that ends in {suffix}.")
    return Path(path).read_bytes()
