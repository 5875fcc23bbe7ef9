"""The files that Keras and TensorFlow write a model to: which Keras wrote one, and how it is read.

tf_keras and Keras 3 use the same names for formats that the other cannot always read, so a file is loaded by the one
that wrote it, whichever of them `tf.keras` is in this process.
"""

from __future__ import annotations

import importlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from paceline.air.errors import CheckpointError, ConfigError
from paceline.air.packing import check_zip_size
from paceline.train.tensorflow.safe_config import refuse_code

KERAS_FILE = "model.keras"
H5_FILE = "model.h5"
H5_WEIGHTS_FILE = "model.weights.h5"
"""Keras goes by this ending: such a file has weights alone, arranged in another way than in a whole model."""
SAVED_MODEL = "saved_model"
"""Where earlier versions put a SavedModel in a checkpoint; now it is at the root."""
SAFE_KERAS = (3, 15, 1)
"""Earlier ones have known holes in their safe mode; pyproject.toml asks for the same."""
MAX_JSON_BYTES = 32 << 20
"""Of each JSON text in a file; as objects it takes many times as much memory."""
_OWN_FILES = (KERAS_FILE, H5_FILE, H5_WEIGHTS_FILE)
_SAVED_MODEL_MARK = "saved_model.pb"
_KERAS_METADATA = "keras_metadata.pb"
"""In a SavedModel that `model.save` of tf_keras wrote, beside the graph: what the model is made of."""
_WEIGHTS_IN_KERAS_FILE = "model.weights.h5"
_FAILURES = (ValueError, TypeError, KeyError, AttributeError, NotImplementedError, OSError)
"""What Keras raises for files and models that it cannot cope with."""
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
    with _metrics_left_out(model), _plain_optimizer(model):
        try:
            model.save(str(path), **options)
        except _FAILURES as error:
            raise CheckpointError(
                f"Keras cannot save the model {type(model).__name__}: {_one_line(error)}. Save its weights instead: "
                "TensorflowCheckpoint.from_dict({'model_weights': model.get_weights()})."
            ) from error


@contextmanager
def _plain_optimizer(model: Any) -> Iterator[None]:
    """Save the optimizer that Horovod has wrapped as what it was before: Horovod's class is made in the process, and
    nobody else could load it."""
    optimizer = getattr(model, "optimizer", None)
    wrapper = type(optimizer)
    if wrapper.__module__ != "horovod._keras":
        yield
        return
    optimizer.__class__ = wrapper.__bases__[0]
    try:
        yield
    finally:
        optimizer.__class__ = wrapper


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
    if path.is_dir() and safe_mode:
        raise CheckpointError(
            f"{path.name} holds a SavedModel, a program of TensorFlow: it can read and write any file when loaded "
            "or used. If you know where the checkpoint comes from, get_model(safe_mode=False) loads it; for "
            "predictions, TensorflowPredictor.from_checkpoint(checkpoint, safe_mode=False)."
        )
    if _is_program(path):
        import tensorflow as tf

        return tf.saved_model.load(str(path))
    keras = _writer(path)
    if safe_mode and keras.__name__ == "tf_keras":
        for config in _configs(path):
            refuse_code(config, custom_objects, path.name)
    elif safe_mode:
        _check_safe_mode_works(keras.__version__, path.name)
    with _failures_told(path, _WHOLE_MODEL_ADVICE), _safe_mode(keras, safe_mode):
        return keras.models.load_model(str(path), custom_objects=custom_objects, compile=compiled, safe_mode=safe_mode)


def _check_safe_mode_works(version: str, file_name: str) -> None:
    """A prepared file ran code in older versions, in spite of their safe mode."""
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:3])
    if numbers < SAFE_KERAS:
        needed = ".".join(map(str, SAFE_KERAS))
        raise CheckpointError(
            f"{file_name} is not loaded: code in it could run in spite of the safe mode of Keras {version}. Install a "
            f"newer one (pip install 'keras>={needed}'). If you know where the checkpoint comes from, "
            "get_model(safe_mode=False) loads it."
        )


def load_weights(path: Path, model: Any, safe_mode: bool) -> None:
    """The weights of a saved model, or those that were saved by themselves, into `model`."""
    if _is_program(path):
        raise ConfigError(
            f"{path.name} is a program of TensorFlow: it has no weights that a model could take. Leave the model "
            "definition out."
        )
    with _failures_told(path, "The model must be built as the one that was saved, and by the same Keras."):
        if path.is_dir():
            model.set_weights(load_model(path, None, compiled=False, safe_mode=safe_mode).get_weights())
        else:
            _check_sizes(path)
            model.load_weights(str(path))
            _check_all_were_taken(path, model)


def _check_all_were_taken(path: Path, model: Any) -> None:
    """In its newer formats Keras passes over saved layers that the model does not have, without a word."""
    saved = _layers_saved_with_weights(path)
    taken = [layer.name for layer in model.layers if layer.weights]
    if saved > len(taken):
        raise ValueError(f"{saved} layers with weights were saved, and the model has {len(taken)}: {', '.join(taken)}")


def _layers_saved_with_weights(path: Path) -> int:
    if path.suffix == ".h5":
        with _h5(path) as content:
            return len(_with_arrays(content.get("layers", {})))
    with zipfile.ZipFile(path) as archive, archive.open(_WEIGHTS_IN_KERAS_FILE) as file, _h5(file) as content:
        return len(_with_arrays(content.get("layers", {})))


def _with_arrays(groups: Mapping[str, Any]) -> list[str]:
    """Those in which there is more than the state of random numbers."""
    found = []
    for name, group in groups.items():
        arrays: list[str] = []
        group.visititems(lambda path, each, arrays=arrays: arrays.append(path) if hasattr(each, "shape") else None)
        if any("seed_generator" not in path and "random_generator" not in path for path in arrays):
            found.append(name)
    return found


def _is_program(path: Path) -> bool:
    return path.is_dir() and not (path / _KERAS_METADATA).is_file()


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
    if path.suffix == ".h5":
        with _h5(path) as content:
            version = content.attrs.get("keras_version", "2")
    else:
        _check_sizes(path)
        metadata = _json_in(path, "metadata.json")
        version = metadata.get("keras_version") if isinstance(metadata, Mapping) else None
    if not isinstance(version, str) or not version.partition(".")[0].isdecimal():
        raise CheckpointError(f"{path} is damaged: it says that Keras {version} has written it, and there is none.")
    return version


def _configs(path: Path) -> list[Any]:
    """All that a file says about what the model is made of, and how it is compiled."""
    if path.is_dir():
        return []
    if path.suffix != ".h5":
        return [_json_in(path, "config.json")]
    with _h5(path) as content, _damage_told(path):
        attributes = {name: content.attrs.get(name) for name in ("model_config", "training_config")}
        for name, each in attributes.items():
            _check_json_size(path, name, len(each or ""))
        return [json.loads(each) for each in attributes.values() if each is not None]


def _check_sizes(path: Path) -> None:
    """Refuse a .keras file that would become out of proportion when Keras unpacks it."""
    if path.suffix == ".h5":
        return
    check_zip_size(path)
    with _damage_told(path), zipfile.ZipFile(path) as archive:
        for each in archive.infolist():
            if each.filename.endswith(".json"):
                _check_json_size(path, each.filename, each.file_size)


def _check_json_size(path: Path, name: str, size: int) -> None:
    if size > MAX_JSON_BYTES:
        raise CheckpointError(
            f"{path} is not loaded: {name} in it has {size:,} bytes, and the description of a model at most "
            f"{MAX_JSON_BYTES:,}. If the model is yours, load its weights into it: get_model(build_model)."
        )


def _json_in(path: Path, name: str) -> Any:
    with _damage_told(path), zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(name))


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged, or no model that Keras has written: {error}") from error


@contextmanager
def _h5(path: Any) -> Iterator[Any]:
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
    except _FAILURES as error:
        reason = _one_line(error)
        if "Lambda" in reason and "safe_mode" in reason:
            advice = "If you know where the checkpoint comes from, get_model(safe_mode=False) loads the code as well."
        what = f"the SavedModel in {path.name}" if path.is_dir() else path.name
        raise CheckpointError(f"Keras cannot load {what}: {reason}. {advice}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def built(model: Any, taker: str) -> Any:
    """The model that is given, or that a given function builds."""
    if keras_of(model) is None and callable(model):
        model = model()
    if keras_of(model) is None:
        raise ConfigError(f"{taker} takes a Keras model or a function that builds one, not {type(model).__name__}.")
    return model
