"""The preprocessor that belongs to a checkpoint, as the content of a small file in it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

from paceline.air.errors import CheckpointError, SerializationError

preprocessor_loaders: dict[str, Callable[[dict[str, Any]], Any]] = {}
"""By class name, what turns a stored preprocessor's state back into the object. A class of another
library that can be stored has `to_state() -> dict` (JSON values) and is registered here."""

BUILT_IN = "paceline.data.preprocessors"
"""Names in this package need no registration. It stands above this layer, so it is looked up by name,
and only when a checkpoint has such a preprocessor."""


def can_encode(preprocessor: Any) -> bool:
    """Whether it can be stored in a file of its own."""
    name = _name_of(preprocessor)
    return hasattr(preprocessor, "to_state") and (_is_built_in(name) or name in preprocessor_loaders)


def encode(preprocessor: Any) -> bytes:
    """The content of the file."""
    name = _name_of(preprocessor)
    if not can_encode(preprocessor):
        raise SerializationError(
            f"The preprocessor {name} cannot be stored: it is no paceline.data.preprocessor.Preprocessor, and it has "
            "no to_state() method or its class is not in preprocessor_loaders. Keep it in a dict checkpoint's own "
            "items instead."
        )
    return json.dumps({"class": name, "state": preprocessor.to_state()}).encode()


def decode(content: bytes, place: str) -> Any:
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


def _name_of(preprocessor: Any) -> str:
    kind = type(preprocessor)
    return getattr(preprocessor, "stored_name", f"{kind.__module__}.{kind.__qualname__}")


def _is_built_in(name: str) -> bool:
    return name.rpartition(".")[0] == BUILT_IN
