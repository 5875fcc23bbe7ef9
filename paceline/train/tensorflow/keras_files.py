"""The files that Keras and TensorFlow write a model to: which Keras wrote one, and how it is read.

tf_keras and Keras 3 use the same names for formats that the other cannot always read, so a file is loaded by the one
that wrote it, whichever of them `tf.keras` is in this process.
"""

from __future__ import annotations

import importlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from paceline.air.errors import CheckpointError, ConfigError

KERAS_FILE = "model.keras"
H5_FILE = "model.h5"
H5_WEIGHTS_FILE = "model.weights.h5"
"""Keras goes by this ending: such a file has weights alone, arranged in another way than in a whole model."""
SAVED_MODEL = "saved_model"
_OWN_FILES = (KERAS_FILE, H5_FILE, H5_WEIGHTS_FILE)
_SAVED_MODEL_MARK = "saved_model.pb"
_KERAS_METADATA = "keras_metadata.pb"
"""In a SavedModel that `model.save` of tf_keras wrote, beside the graph: what the model is made of."""
_WHOLE_MODEL_ADVICE = (
    "Classes and functions of your own are passed as get_model(custom_objects={'Name': Name}); without optimizer and "
    "loss it is get_model(compile=False); weights alone are loaded into a model that you build: get_model(build_model)."
)


def keras_of(model: Any) -> Any:
    """The Keras that a model's class belongs to, as a module; None if it is no Keras model."""
    for base in type(model).__mro__:
        package = base.__module__.partition(".")[0]
        if package in ("keras", "tf_keras") and base.__name__ == "Model":
            return importlib.import_module(package)
    return None


def find_model(folder: Path) -> Path | None:
    """The model in a directory: a .keras file, an HDF5 file or a SavedModel; None if there is none."""
    for pattern in ("*.keras", "*.h5"):
        found = sorted(folder.glob(pattern))
        preferred = [path for path in found if path.name in _OWN_FILES] or found
        if len(preferred) > 1:
            raise CheckpointError(
                f"{folder} holds several models: {', '.join(path.name for path in found)}. Keep one, or call it "
                f"{KERAS_FILE} or {H5_FILE}."
            )
        if preferred:
            return preferred[0]
    return next((each for each in (folder / SAVED_MODEL, folder) if (each / _SAVED_MODEL_MARK).is_file()), None)


def save_model(model: Any, path: Path) -> None:
    """A .keras file of the whole model."""
    # Outside of the thread that imported it, tf_keras would write HDF5 into a file of that name.
    options = {"save_format": "keras_v3"} if keras_of(model).__name__ == "tf_keras" else {}
    with _metrics_left_out(model):
        model.save(str(path), **options)


@contextmanager
def _metrics_left_out(model: Any) -> Iterator[None]:
    """Save a model without the running values of its metrics: to read them, workers would have to exchange values."""
    own = vars(model)
    metrics = {name: own[name] for name in ("compiled_loss", "compiled_metrics") if name in own}
    own.update(dict.fromkeys(metrics))
    try:
        yield
    finally:
        own.update(metrics)


def load_model(path: Path, custom_objects: Mapping[str, Any] | None, compiled: bool, safe_mode: bool) -> Any:
    """The whole model, by the Keras that wrote it; a SavedModel without a Keras model in it as TensorFlow loads it."""
    if path.is_dir() and not (path / _KERAS_METADATA).is_file():
        import tensorflow as tf

        return tf.saved_model.load(str(path))
    keras = _writer(path)
    with _failures_told(path, _WHOLE_MODEL_ADVICE), _safe_mode(keras, safe_mode):
        return keras.models.load_model(str(path), custom_objects=custom_objects, compile=compiled, safe_mode=safe_mode)


def load_weights(path: Path, model: Any) -> None:
    """The weights of a saved model, or those that were saved by themselves, into `model`."""
    if path.is_dir():
        model.set_weights(load_model(path, None, compiled=False, safe_mode=True).get_weights())
        return
    with _failures_told(path, "The model must be built as the one that was saved, and by the same Keras."):
        model.load_weights(str(path))


def is_weights_only(path: Path) -> bool:
    """Whether the file holds numbers but not what the model looks like."""
    if path.suffix != ".h5":
        return False
    with _h5(path) as content:
        return "model_config" not in content.attrs


def _writer(path: Path) -> Any:
    version = _keras_version(path)
    package = "keras" if int(version.partition(".")[0]) >= 3 else "tf_keras"
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        install = "--no-deps tf_keras" if package == "tf_keras" else "keras"
        raise CheckpointError(
            f"{path.name} was written by Keras {version}, and needs {package}, which is not installed: "
            f"pip install {install}"
        ) from None


def _keras_version(path: Path) -> str:
    if path.is_dir():
        return "2"
    try:
        if path.suffix == ".h5":
            with _h5(path) as content:
                return str(content.attrs.get("keras_version", "2"))
        with zipfile.ZipFile(path) as archive:
            return str(json.loads(archive.read("metadata.json"))["keras_version"])
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged, or no model that Keras has written: {error}") from error


@contextmanager
def _h5(path: Path) -> Iterator[Any]:
    import h5py  # type: ignore[import-untyped]

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise CheckpointError(f"{path} is damaged, or no HDF5 file: {error}") from error
    with file:
        yield file


def _safe_mode(keras: Any, safe_mode: bool) -> Any:
    """tf_keras would run the code of Lambda layers in HDF5 files and SavedModels without being asked."""
    if keras.__name__ != "tf_keras":
        return nullcontext()
    from tf_keras.src.saving.serialization_lib import SafeModeScope

    return SafeModeScope(safe_mode)


@contextmanager
def _failures_told(path: Path, advice: str) -> Iterator[None]:
    """What Keras says, with what can be done about it."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        if "Lambda" in reason and "safe_mode" in reason:
            advice = "If you know where the checkpoint comes from, get_model(safe_mode=False) loads the code as well."
        raise CheckpointError(f"Keras cannot load {path.name}: {reason}. {advice}") from error


def built(model: Any, taker: str) -> Any:
    """The model that is given, or that a given function builds."""
    if keras_of(model) is None and callable(model):
        model = model()
    if keras_of(model) is None:
        raise ConfigError(f"{taker} takes a Keras model or a function that builds one, not {type(model).__name__}.")
    return model
