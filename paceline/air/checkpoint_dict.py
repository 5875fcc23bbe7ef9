"""The dict of a checkpoint as files: a pickle, and a booster in the format of its library.

What is in such a format is read without unpickling.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from typing import Any, BinaryIO

from paceline.air.constants import MODEL_KEY
from paceline.air.errors import CheckpointError, SerializationError

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
