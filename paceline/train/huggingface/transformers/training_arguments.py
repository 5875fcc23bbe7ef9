"""Reading the arguments that a `transformers.Trainer` stores by pickle, without running code from the file."""

from __future__ import annotations

import dataclasses
import enum
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.errors import CheckpointError

if TYPE_CHECKING:
    import transformers

_PACKAGES = ("accelerate", "torch", "transformers")


def read_training_arguments(path: Path) -> transformers.TrainingArguments:
    """The TrainingArguments of a file that a trainer wrote."""
    import torch
    from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals
    from transformers import TrainingArguments

    try:
        named = get_unsafe_globals_in_checkpoint(str(path))
        settings = [_settings_class(name) for name in named]
        refused = [name for name, found in zip(named, settings, strict=True) if found is None]
        if refused:
            raise CheckpointError(
                f"{path} names {', '.join(sorted(refused))}, which is none of the settings of Transformers: loading it "
                "may run code. If you know where the file comes from: torch.load(path, weights_only=False)."
            )
        with safe_globals([found for found in settings if found is not None]):
            arguments = torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged, or holds no TrainingArguments: {error}") from error
    if not isinstance(arguments, TrainingArguments):
        raise CheckpointError(f"{path} holds a {type(arguments).__name__}, not TrainingArguments.")
    return arguments


def _settings_class(name: str) -> Any:
    """The class of that name if all it can do is to hold settings; otherwise None."""
    module, _, attribute = name.rpartition(".")
    if module.partition(".")[0] not in _PACKAGES:
        return None
    found = getattr(sys.modules.get(module), attribute, None)  # nothing is imported because a file says so
    if not isinstance(found, type):
        return None
    holds_settings = issubclass(found, enum.Enum) or dataclasses.is_dataclass(found)
    return found if holds_settings or name == "accelerate.state.PartialState" else None
