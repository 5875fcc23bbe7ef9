"""Which files of a checkpoint can run code when they are loaded or used, so that they can be refused first."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from paceline.air.checkpoint import Checkpoint
from paceline.air.checkpoint_sources import PACKED_FILES_KEY, LocalDirectory, MemoryDict, Packed, Remote
from paceline.air.constants import CHECKPOINT_PREPROCESSOR_FILE
from paceline.air.packing import tree

PICKLE_ENDINGS = frozenset([".pkl", ".pickle", ".p", ".joblib", ".cloudpickle", ".dill"])
PICKLED_MODELS = frozenset(["model_pickled.pt"])
"""Whole models of frameworks; weights alone are loaded without running code."""
PROGRAMS = frozenset(["saved_model.pb", "saved_model.pbtxt"])
"""Graphs of TensorFlow: their operations read and write files, when the graph is loaded or when it predicts."""


def code_parts(checkpoint: Checkpoint) -> list[str]:
    """The files of a checkpoint that can run code, by name: pickles and programs. Nothing is loaded to find out.

    What is in this process as objects already needs no loading, and is not listed.
    """
    source = checkpoint._source
    if isinstance(source, MemoryDict) and isinstance(packed := source.data.get(PACKED_FILES_KEY), bytes):
        return code_parts(Checkpoint.from_bytes(packed))
    if not isinstance(source, LocalDirectory | Remote | Packed):
        return []
    with checkpoint.as_directory() as folder:
        names = [name for name, path in tree(Path(folder)) if not path.is_dir() and _holds_code(name)]
        preprocessor = Path(folder, CHECKPOINT_PREPROCESSOR_FILE)
        if preprocessor.is_file() and _holds_pickles(preprocessor.read_bytes()):
            names.append(CHECKPOINT_PREPROCESSOR_FILE)
    return sorted(names)


def _holds_code(name: str) -> bool:
    path = PurePosixPath(name)
    return path.name in PICKLED_MODELS | PROGRAMS or not PICKLE_ENDINGS.isdisjoint(
        suffix.lower() for suffix in path.suffixes
    )


def _holds_pickles(content: bytes) -> bool:
    """Whether a stored preprocessor has functions or classes of the user's inside."""
    try:
        pending: list[Any] = [json.loads(content)]
    except (ValueError, RecursionError):
        return False  # damaged: loading it says so
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if "$pickle" in value:
                return True
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return False
