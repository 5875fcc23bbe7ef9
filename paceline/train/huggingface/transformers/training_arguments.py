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

from paceline.air.errors import CheckpointError, ConfigError
from paceline.train.torch.loading import load_plain

if TYPE_CHECKING:
    import transformers

_PACKAGES = ("accelerate", "transformers")
_PARTIAL_STATE = "accelerate.state.PartialState"
"""The one class beside dataclasses: arguments refer to it."""


def read_training_arguments(path: Path) -> transformers.TrainingArguments:
    """The TrainingArguments of a file that a trainer wrote."""
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
            read = load_plain(path)
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


_BEST = (
    "CheckpointConfig(num_to_keep=1, checkpoint_score_attribute='eval_loss', checkpoint_score_order='min') in the "
    "run's RunConfig keeps the best one, and result.best_checkpoints has it"
)


def check_strategies(args: transformers.TrainingArguments) -> None:
    """Refuse arguments with which logs, evaluations and checkpoints would not come together."""
    if args.load_best_model_at_end:
        raise ConfigError(
            "TrainingArguments(load_best_model_at_end=True): checkpoints belong to the run, which keeps them "
            f"elsewhere. Leave it out; {_BEST}."
        )
    logging = _name(args.logging_strategy)
    for setting in ("eval_strategy", "save_strategy"):
        chosen = _name(getattr(args, setting))
        if chosen == "best":
            raise ConfigError(
                f"TrainingArguments(save_strategy='best'): use save_strategy={logging!r}, as for logging_strategy. "
                f"{_BEST}."
            )
        if chosen not in ("no", logging):
            raise ConfigError(
                f"TrainingArguments({setting}={chosen!r}, logging_strategy={logging!r}): these must agree, because "
                f"what is logged, evaluated and saved is reported together. Use logging_strategy={chosen!r} or "
                f"{setting}={logging!r}."
            )
    if _name(args.eval_strategy) == "steps" and args.eval_steps != args.logging_steps:
        raise ConfigError(
            f"TrainingArguments(eval_steps={args.eval_steps}, logging_steps={args.logging_steps}): these must be "
            f"equal, because both are reported together. Use logging_steps={args.eval_steps}."
        )
    if _name(args.save_strategy) == "steps" and not _is_multiple(args.save_steps, args.logging_steps):
        raise ConfigError(
            f"TrainingArguments(save_steps={args.save_steps}, logging_steps={args.logging_steps}): save_steps must "
            "be a multiple of logging_steps, because a checkpoint goes with what is logged. Use "
            f"save_steps={_next_multiple(args.save_steps, args.logging_steps):.12g}."
        )


def check_rounded_steps(args: transformers.TrainingArguments, state: transformers.TrainerState) -> None:
    """Shares of the training become numbers of steps once its length is known, each rounded up by itself."""
    if _name(args.save_strategy) == "steps" and not _is_multiple(state.save_steps, state.logging_steps):
        raise ConfigError(
            f"TrainingArguments(save_steps={args.save_steps}, logging_steps={args.logging_steps}) are every "
            f"{state.save_steps} and every {state.logging_steps} of {state.max_steps} steps: save_steps must be a "
            "multiple of logging_steps, because a checkpoint goes with what is logged. Use "
            f"save_steps={_next_multiple(state.save_steps, state.logging_steps)} and "
            f"logging_steps={state.logging_steps}."
        )


def check_loading(args: transformers.TrainingArguments) -> None:
    """For trainers with datasets of the run."""
    if args.dataloader_num_workers > 0:
        raise ConfigError(
            f"TrainingArguments(dataloader_num_workers={args.dataloader_num_workers}): the datasets of a run are read "
            "ahead by threads, and cannot be read by other processes. Leave dataloader_num_workers out."
        )


def _name(strategy: object) -> str:
    return str(getattr(strategy, "value", strategy))


def _is_multiple(steps: float, of: float) -> bool:
    """Numbers below 1 are shares of the whole training."""
    if of <= 0 or (steps < 1) != (of < 1):
        return False
    times = steps / of
    return times >= 1 and abs(times - round(times)) < 1e-9


def _next_multiple(steps: float, of: float) -> float:
    if of <= 0 or (steps < 1) != (of < 1):
        return of
    return max(1, -(-steps // of)) * of
