"""What the constructors of all trainers check of their arguments."""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

from paceline.air.checkpoint import Checkpoint
from paceline.air.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.air.errors import CheckpointNotFoundError, ConfigError
from paceline.air.keywords import names_what_was_meant, settings_of
from paceline.storage.filesystem import FsspecFilesystem

SETTINGS_ELSEWHERE = {
    **settings_of(FailureConfig, "run_config=RunConfig(failure_config=FailureConfig({}=...))"),
    **settings_of(CheckpointConfig, "run_config=RunConfig(checkpoint_config=CheckpointConfig({}=...))"),
    **settings_of(RunConfig, "run_config=RunConfig({}=...)"),
    **settings_of(ScalingConfig, "scaling_config=ScalingConfig({}=...)"),
}
"""What people pass to a trainer although it belongs to one of the trainer's configs."""


def with_checked_keywords(constructor: Any, function: str | None, config: str | None) -> Any:
    """A trainer's constructor that answers misspelled arguments; the texts are its names for what workers run."""
    parameters = inspect.signature(constructor).parameters
    often = {"config": config, "train_loop": function, "train_func": function, "train_fn": function}
    meant = {name: f"did you mean {argument}?" for name, argument in often.items() if argument in parameters}
    return names_what_was_meant(**{**SETTINGS_ELSEWHERE, **meant})(constructor)


def positional_names(trainer: Any) -> list[str]:
    """The constructor's arguments that may be given without their name."""
    return _positional_names(trainer)


@functools.cache
def _positional_names(trainer: Any) -> list[str]:
    parameters = inspect.signature(trainer).parameters.values()
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def keyword_names(trainer: Any) -> list[str] | None:
    """The constructor's arguments by name; None if it takes any."""
    parameters = inspect.signature(trainer).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return [each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]


def as_checkpoint(value: Checkpoint | str | os.PathLike[str] | None) -> Checkpoint | None:
    """`resume_from_checkpoint` in whichever form it was given."""
    if value is None or isinstance(value, Checkpoint):
        return value
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        return Checkpoint.from_uri(text) if "://" in text else Checkpoint.from_directory(text)
    raise ConfigError(f"resume_from_checkpoint must be a Checkpoint or a path, not {type(value).__name__}.")


def check_is_there(checkpoint: Checkpoint | None) -> None:
    """A mistyped URI is rejected before workers start; of a directory the checkpoint itself made sure."""
    if checkpoint is not None and checkpoint.kind == "uri" and checkpoint.uri is not None:
        store = FsspecFilesystem(checkpoint.uri, checkpoint.filesystem)
        if not store.list():
            raise CheckpointNotFoundError(f"resume_from_checkpoint: there is no checkpoint at {store.label}.")
