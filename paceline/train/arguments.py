"""What the constructors of all trainers check of their arguments."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ForwardRef, TypedDict, TypeVar, Unpack, get_args, get_origin

from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import check_kind
from paceline.air.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.air.data_config import DataConfig, DatasetConfig
from paceline.air.errors import CheckpointNotFoundError, ConfigError
from paceline.air.keywords import names_what_was_meant, settings_of
from paceline.run.backend import BackendConfig
from paceline.storage.filesystem import FsspecFilesystem

SETTINGS_ELSEWHERE = {
    **settings_of(FailureConfig, "run_config=RunConfig(failure_config=FailureConfig({}=...))"),
    **settings_of(CheckpointConfig, "run_config=RunConfig(checkpoint_config=CheckpointConfig({}=...))"),
    **settings_of(RunConfig, "run_config=RunConfig({}=...)"),
    **settings_of(ScalingConfig, "scaling_config=ScalingConfig({}=...)"),
}
"""What people pass to a trainer although it belongs to one of the trainer's configs."""


class TrainerArguments(TypedDict, total=False):
    """What every trainer takes: ``def __init__(self, ..., **common: Unpack[TrainerArguments])`` passes it on."""

    scaling_config: ScalingConfig | None
    run_config: RunConfig | None
    datasets: Mapping[str, Any] | None
    preprocessor: Any
    resume_from_checkpoint: Checkpoint | str | os.PathLike[str] | None
    metadata: Mapping[str, Any] | None


class DataParallelArguments(TrainerArguments, total=False):
    """What every trainer with several workers takes besides."""

    dataset_config: Mapping[str, DatasetConfig] | DataConfig | None


_CONFIGS_OF_ALL = [name for name in DataParallelArguments.__annotations__ if name.endswith("_config")]
_COMMON = {kind.__name__: kind for kind in (TrainerArguments, DataParallelArguments)}


def with_common_arguments(constructor: Any) -> Any:
    """Let the constructor's signature show the arguments that it takes as ``**common: Unpack[...]``, by their names."""
    signature = inspect.signature(constructor)
    *others, last = signature.parameters.values()
    common = _unpacked(last.annotation) if last.kind is last.VAR_KEYWORD else None
    if common is not None:
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_as_written(annotation))
            for name, annotation in common.__annotations__.items()
        ]
        constructor.__signature__ = signature.replace(parameters=[*others, *named])
    return constructor


def _unpacked(annotation: Any) -> Any:
    """Which of the common arguments an annotation means; modules without postponed evaluation have it as an object."""
    if get_origin(annotation) is Unpack:
        (kind,) = get_args(annotation)
        return _COMMON.get(getattr(kind, "__name__", ""))
    written = re.search(r"Unpack\[(?:\w+\.)*(\w+)\]$", str(annotation))
    return _COMMON.get(written[1]) if written else None


def _as_written(annotation: Any) -> Any:
    """The text of an annotation, as those of the other arguments are shown."""
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation


def with_checked_keywords(constructor: Any, function: str | None, config: str | None) -> Any:
    """A trainer's constructor that answers misspelled arguments; the texts are its names for what workers run."""
    parameters = inspect.signature(with_common_arguments(constructor)).parameters
    often = {"config": config, "train_loop": function, "train_func": function, "train_fn": function}
    meant = {name: f"did you mean {argument}?" for name, argument in often.items() if argument in parameters}
    if "backend_config" not in parameters:
        own = [name for name in parameters if name.endswith("_config") and name not in (*_CONFIGS_OF_ALL, config)]
        meant["backend_config"] = f"did you mean {own[0]}?" if len(own) == 1 else "the trainer has its own backend."
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


# -- a trainer's settings for its framework, which have several names in existing code -------------


C = TypeVar("C", bound=BackendConfig)


def chosen_config(trainer: str, kind: type[C], **spellings: object) -> C:
    """The one that is given, or the defaults. Giving it by two names leaves open which one is meant."""
    given = {name: value for name, value in spellings.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"{trainer} got {' and '.join(given)}, which mean the same: give one of them.")
    for name, value in given.items():
        return check_kind(value, kind, name) or kind()
    return kind()


def config_as(kind: type[C], config: BackendConfig, **added: Any) -> C:
    """The same settings as an object of a class that is derived from the config's own, with others added."""
    same = {each.name: getattr(config, each.name) for each in fields(kind) if hasattr(config, each.name)}
    return kind(**{**same, **added})
