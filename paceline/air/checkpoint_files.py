"""What the files of a checkpoint hold that paceline itself writes: metadata, the preprocessor, positions, a dict."""

from __future__ import annotations

import importlib
import io
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeVar

from paceline.air.constants import CHECKPOINT_DATA_FILE, MODEL_KEY
from paceline.air.errors import CheckpointCorruptError, CheckpointError, SerializationError

T = TypeVar("T")

_MARK = "paceline"
"""Top-level key that tells our layout from a bare dict of notes written by other tools."""


@dataclass
class CheckpointMetadata:
    """What `.metadata.json` says."""

    class_name: str | None = None
    """Qualified name of the Checkpoint subclass that wrote it; None for Checkpoint itself."""
    report: dict[str, Any] | None = None
    """timestamp, number, iteration and epochs of loaders, once it went through a report."""
    user: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, content: bytes | None, where: str) -> CheckpointMetadata:
        if content is None:
            return cls()
        try:
            data = json.loads(content)
        except ValueError as error:
            raise CheckpointCorruptError(f"The metadata file of {where} is damaged: {error}.") from error
        if not isinstance(data, dict):
            raise CheckpointCorruptError(f"The metadata file of {where} holds no JSON object.")
        if _MARK not in data:
            return cls(user=data)
        name, report, user = data.get("class"), data.get("report"), data.get("user", {})
        well_formed = (
            (name is None or isinstance(name, str))
            and (report is None or isinstance(report, dict))
            and isinstance(user, dict)
        )
        if not well_formed:
            raise CheckpointCorruptError(f"The metadata file of {where} has unexpected content.")
        return cls(name, report, user)

    def encode(self) -> bytes:
        data: dict[str, Any] = {_MARK: 1}
        if self.class_name is not None:
            data["class"] = self.class_name
        if self.report is not None:
            data["report"] = self.report
        if self.user:
            data["user"] = self.user
        return json.dumps(data, ensure_ascii=False).encode()


def checked_notes(notes: Any) -> dict[str, Any]:
    """The user's metadata as it will come back, or CheckpointError."""
    if not isinstance(notes, dict):
        raise CheckpointError(f"Metadata must be a dict, not {type(notes).__name__}.")
    try:
        plain = json.loads(json.dumps(notes))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"Metadata must be JSON (numbers, text, lists, dicts): {error}.") from error
    assert isinstance(plain, dict)
    return plain


def qualified_name(kind: type) -> str:
    """What a file calls a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def loaded_class(name: str | None, wanted: type[T]) -> type[T]:
    """The subclass of `wanted` that has this name, among classes that are loaded; else `wanted`.

    A file can name a class but never make one be imported.
    """
    if name is None:
        return wanted
    candidates = [wanted]
    while candidates:
        kind = candidates.pop()
        if qualified_name(kind) == name:
            return kind
        candidates.extend(kind.__subclasses__())
    return wanted


# -- the preprocessor ---------------------------------------------------------------------

preprocessor_loaders: dict[str, Callable[[dict[str, Any]], Any]] = {}
"""By class name, what turns a stored preprocessor's state back into the object. A class of another
library that can be stored has `to_state() -> dict` (JSON values) and is registered here."""

BUILT_IN = "paceline.data.preprocessors"
"""Names in this package need no registration. It stands above this layer, so it is looked up by name,
and only when a checkpoint has such a preprocessor."""


def can_encode_preprocessor(preprocessor: Any) -> bool:
    """Whether it can be stored in a file of its own."""
    name = _stored_name(preprocessor)
    return hasattr(preprocessor, "to_state") and (_is_built_in(name) or name in preprocessor_loaders)


def encode_preprocessor(preprocessor: Any) -> bytes:
    """The content of the file."""
    name = _stored_name(preprocessor)
    if not can_encode_preprocessor(preprocessor):
        raise SerializationError(
            f"The preprocessor {name} cannot be stored: it is not a paceline.data.preprocessor.Preprocessor, and it "
            "has no to_state() method or its class is not in preprocessor_loaders. Keep it in a dict checkpoint's own "
            "items instead."
        )
    return json.dumps({"class": name, "state": preprocessor.to_state()}).encode()


def decode_preprocessor(content: bytes, place: str) -> Any:
    """The preprocessor from the file's content.

    A name in a file never makes anything be imported but the built-in preprocessors. Functions and
    classes of the user's inside a state are pickles, which are loaded here.
    """
    try:
        stored = json.loads(content)
        name, state = stored["class"], stored["state"]
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"The preprocessor of {place} cannot be read: its file is damaged ({error!r})."
        ) from error
    if name in preprocessor_loaders:
        return preprocessor_loaders[name](state)
    if not (isinstance(name, str) and _is_built_in(name)):
        raise CheckpointError(
            f"The preprocessor of {place} is a {name}, which is not loaded. Import the module that defines it first."
        )
    try:
        return importlib.import_module(BUILT_IN).loader(name)(state)
    except Exception as error:
        raise CheckpointError(f"The preprocessor of {place} ({name}) cannot be loaded: {error}") from error


def _stored_name(preprocessor: Any) -> str:
    kind = type(preprocessor)
    return getattr(preprocessor, "stored_name", f"{kind.__module__}.{kind.__qualname__}")


def _is_built_in(name: str) -> bool:
    return name.rpartition(".")[0] == BUILT_IN


# -- where the workers were in their datasets ---------------------------------------------


def decode_positions(content: bytes, where: str) -> dict[str, Any]:
    """Dataset name -> stored position."""
    try:
        state = json.loads(content)
    except ValueError as error:
        raise CheckpointCorruptError(f"{CHECKPOINT_DATA_FILE} of {where} is damaged: {error}.") from error
    if not isinstance(state, dict):
        raise CheckpointCorruptError(f"{CHECKPOINT_DATA_FILE} of {where} is not a JSON object.")
    return state


# -- a dict: a pickle, and a booster in the format of its library, which is read without unpickling -----

XGBOOST_MODEL = ".dict_model.ubj"
LIGHTGBM_MODEL = ".dict_model.txt"
LIGHTGBM_DETAILS = ".dict_model_details.json"
MODEL_FILES = frozenset([XGBOOST_MODEL, LIGHTGBM_MODEL, LIGHTGBM_DETAILS])


def model_files(data: Mapping[str, Any]) -> dict[str, bytes]:
    """By name, the files of the booster that is the item "model"; empty if that is anything else.

    Boosters are recognised by the names of their classes: no framework is imported here.
    """
    model = data.get(MODEL_KEY)
    kind = type(model)
    library = kind.__module__.partition(".")[0]
    if model is None or kind.__name__ != "Booster":
        return {}
    if library == "xgboost":
        return {XGBOOST_MODEL: bytes(model.save_raw("ubj"))}
    if library == "lightgbm":
        details = {"best_iteration": model.best_iteration, "features": None, "evaluations": [], "rounds": None}
        text = model.model_to_string(num_iteration=-1)
        return {LIGHTGBM_MODEL: text.encode(), LIGHTGBM_DETAILS: json.dumps(details).encode()}
    return {}


def write_pickle(data: dict[str, Any], file: BinaryIO) -> None:
    """Store a dict, or say which of its items cannot be stored."""
    import cloudpickle

    try:
        cloudpickle.dump(data, file, protocol=5)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        culprit = next((key for key, value in data.items() if not _can_pickle(value)), None)
        raise SerializationError(
            f"The checkpoint's item {culprit!r} cannot be stored: {type(error).__name__}: {error}. "
            "Leave it out, or put its plain content there (for a model: its state_dict)."
        ) from error


def _can_pickle(value: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dump(value, Discard(), protocol=5)
    except Exception:
        return False
    return True


class Discard(io.RawIOBase):
    """Swallows what is written: finding a culprit needs no second copy of the data."""

    def write(self, content: Any) -> int:
        return len(content)


def read_pickle(file: BinaryIO, where: str) -> dict[str, Any]:
    """The dict in a file; this runs whatever code is in it."""
    try:
        data = pickle.load(file)
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{where} cannot be loaded: {type(error).__name__}: {error}. It is damaged, or it needs modules that are "
            "not there."
        ) from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{where} holds a {type(data).__name__}, not the dict of a checkpoint.")
    return data
