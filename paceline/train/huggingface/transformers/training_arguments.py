"""Reading the arguments that a `transformers.Trainer` stores by pickle, without running code from the file.

A pickle calls what it names. Enumerations are the only classes that this one gets to call. In the place of all others
it finds empty stand-ins, which have no constructor, and are given their class when everything has been read.
"""

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

_PACKAGES = ("accelerate", "transformers")
_PARTIAL_STATE = "accelerate.state.PartialState"
"""The one class beside dataclasses: arguments refer to it."""


def read_training_arguments(path: Path) -> transformers.TrainingArguments:
    """The TrainingArguments of a file that a trainer wrote."""
    import torch
    from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals
    from transformers import TrainingArguments

    try:
        named = {name: _settings_class(name) for name in get_unsafe_globals_in_checkpoint(str(path))}
        refused = sorted(name for name, found in named.items() if found is None)
        if refused:
            raise CheckpointError(
                f"{path} names {', '.join(refused)}, which is none of the settings of Transformers: loading it may run "
                "code. If you know where the file comes from: torch.load(path, weights_only=False)."
            )
        stand_ins = {
            name: found if issubclass(found, enum.Enum) else type("StandIn", (), {}) for name, found in named.items()
        }
        with safe_globals([(stand_in, name) for name, stand_in in stand_ins.items()]):
            read = torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged, or holds no TrainingArguments: {error}") from error
    arguments = _with_class(read, {stand_ins[name]: named[name] for name in named})
    if not isinstance(arguments, TrainingArguments):
        raise CheckpointError(f"{path} holds a {type(arguments).__name__}, not TrainingArguments.")
    return arguments


def _settings_class(name: str) -> Any:
    """The class of that name if it holds settings; otherwise None."""
    module, _, attribute = name.rpartition(".")
    if module.partition(".")[0] not in _PACKAGES:
        return None
    found = getattr(sys.modules.get(module), attribute, None)  # nothing is imported because a file says so
    if not isinstance(found, type):
        return None
    holds_settings = issubclass(found, enum.Enum) or dataclasses.is_dataclass(found)
    return found if holds_settings or name == _PARTIAL_STATE else None


def _with_class(read: Any, classes: dict[type, type]) -> Any:
    """What was read, with objects of the real classes in the places of stand-ins."""
    if type(read) not in classes or isinstance(read, enum.Enum):
        return read
    made: Any = object.__new__(classes[type(read)])
    made.__dict__.update({name: _with_class(value, classes) for name, value in vars(read).items()})
    return made
