"""What trainers share of their arguments: their names and checks, and which worker gets what of `datasets=`."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ForwardRef, TypedDict, TypeVar, Unpack, get_args, get_origin

from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import check_kind, names_what_was_meant, settings_of, warn_at_users_line
from paceline.air.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.data_config import WILDCARD, DataConfig, DatasetConfig
from paceline.air.errors import CheckpointError, CheckpointNotFoundError, ConfigError, RestoreError
from paceline.air.validation import ValidationConfig
from paceline.run.backend import BackendConfig
from paceline.run.spec import ValidationSpec
from paceline.storage.filesystem import FsspecFilesystem

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.data.ingest.request import Ingest
    from paceline.data.preprocessor import Preprocessor

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
    validation_config: ValidationConfig | None


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


_MAKERS = {"datasets": "from_huggingface", "torch": "from_torch", "pandas": "from_pandas", "pyarrow": "from_arrow"}
DEFAULT_DATASET_CONFIG = {TRAIN_DATASET_KEY: DatasetConfig(fit=True, split=True), WILDCARD: DatasetConfig(split=False)}


def check_datasets(datasets: Mapping[str, Any], preprocessor: Any) -> None:
    """Refuse what can be no dataset and no preprocessor, where it was written."""
    if datasets:
        from paceline.data.dataset import Dataset
        from paceline.data.from_objects import refuse_ray_dataset

        for name, value in datasets.items():
            if not isinstance(name, str):
                raise ConfigError(f"datasets: names are strings, not {name!r}.")
            refuse_ray_dataset(value, f"datasets[{name!r}]")
            if not isinstance(value, Dataset) and not callable(value):
                kind = type(value)
                known_as = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
                raise ConfigError(
                    f"datasets[{name!r}] must be a paceline.data Dataset, or a function without arguments that makes "
                    f"one, not {known_as}. {_way_to_a_dataset(kind)}"
                )
    if preprocessor is not None:
        from paceline.data.preprocessor import Preprocessor

        if not isinstance(preprocessor, Preprocessor):
            raise ConfigError(f"preprocessor must be a paceline.data Preprocessor, not {type(preprocessor).__name__}.")


def _way_to_a_dataset(kind: type) -> str:
    packages = [base.__module__.partition(".")[0] for base in kind.__mro__]
    maker = next((_MAKERS[package] for package in packages if package in _MAKERS), None)
    if maker is None:
        return "Make one with paceline.data.from_pandas(), read_parquet(), ..."
    return f"Make one of it with paceline.data.{maker}()."


def check_validation(config: ValidationConfig, run_config: RunConfig, trainer: str, reports_by_itself: bool) -> None:
    """Refuse a validation that could never happen."""
    if reports_by_itself:
        raise ConfigError(
            f"{trainer} calls report() for you, so your code cannot request a validation. Remove validation_config=."
        )
    if run_config.checkpoint_config.num_to_keep == 0:
        raise ConfigError(
            "validation_config validates checkpoints on disk, but CheckpointConfig(num_to_keep=0) keeps the newest in "
            "memory only. Set num_to_keep to 1 or more."
        )
    check_datasets(config.datasets or {}, None)
    _check_names(config.dataset_config or {}, config.datasets or {})


def validation_spec(config: ValidationConfig | None) -> ValidationSpec | None:
    """How checkpoints are validated: each worker gets its part of each dataset, and no row is left out, unless the user
    has chosen something else."""
    if config is None or not config.datasets:
        return None if config is None else ValidationSpec(config)
    from paceline.data.ingest.request import Ingest

    usual = {WILDCARD: DatasetConfig(split=True, uneven="all", randomize_block_order=False)}
    configs = DatasetConfig.merge(usual, config.dataset_config)
    return ValidationSpec(config, Ingest(config.datasets, DatasetConfig.validated(configs, config.datasets)))


def complete_configs(
    given: DataConfig | Mapping[str, DatasetConfig] | None, datasets: Mapping[str, Any]
) -> dict[str, DatasetConfig]:
    """One complete config per dataset. Without a config of the user's nothing is shuffled."""
    if given is None:
        if not datasets:
            return {}
        given = DataConfig()
    if isinstance(given, DataConfig):
        named = given.datasets_to_split
        unknown = [] if named is None or named == "all" else [name for name in named if name not in datasets]
        if unknown:
            raise ConfigError(
                f"DataConfig(datasets_to_split=...) names {unknown}; the datasets are {sorted(datasets)}."
            )
        return DatasetConfig.validated(given.as_dataset_configs(datasets), datasets)
    if not isinstance(given, Mapping):
        raise ConfigError(
            "dataset_config must be a DataConfig, or a dict of dataset name to DatasetConfig, "
            f"not {type(given).__name__}."
        )
    _check_names(given, datasets)
    return DatasetConfig.validated(DatasetConfig.merge(DEFAULT_DATASET_CONFIG, given), datasets)


def _check_names(given: Mapping[str, DatasetConfig], datasets: Mapping[str, Any]) -> None:
    for name in given:
        if name not in datasets and name != WILDCARD and (meant := difflib.get_close_matches(name, datasets, n=1)):
            raise ConfigError(f"dataset_config names {name!r}; there is no such dataset. Did you mean {meant[0]!r}?")


def restored_configs(stored: Mapping[str, Mapping[str, Any]]) -> dict[str, DatasetConfig]:
    """The configs that an earlier driver wrote down."""
    return {name: DatasetConfig(**config) for name, config in stored.items()}


def check_uneven(configs: Mapping[str, DatasetConfig], joins: bool, trainer: str) -> None:
    """Refuse uneven="join" where ranks cannot join (`joins`)."""
    for name, config in configs.items():
        if config.uneven == "join" and config.split and not joins:
            raise ConfigError(
                f"The dataset {name!r} has uneven='join', which lets ranks of a TorchTrainer join through PyTorch's "
                f"Join; {trainer} does not support it. Use uneven='equal' or 'pad_mask'."
            )


def make_ingest(
    datasets: Mapping[str, Any],
    config: DataConfig | Mapping[str, DatasetConfig] | None,
    preprocessor: Any,
    resume_from: Checkpoint | None,
    *,
    read_once: bool = False,
) -> Ingest | None:
    """What a run shall do with the datasets; None without any.

    A run that starts from a checkpoint treats data as the run before did: with its preprocessor, unless
    another is given.
    """
    configs = complete_configs(config, datasets)
    if not datasets and preprocessor is None:
        return None
    from paceline.data.ingest.request import Ingest

    notes: tuple[str, ...] = ()
    if preprocessor is None and resume_from is not None:
        preprocessor = resume_from.get_preprocessor()
        if preprocessor is not None:
            notes = (f"The datasets are preprocessed as before, with the checkpoint's {preprocessor!r}.",)
    return Ingest(datasets, configs, preprocessor, notes, read_once)


def continued_preprocessor(path: str, filesystem: Any, given: Any) -> Any:
    """For a run that goes on: its preprocessor as it was fitted, because the model knows no other.

    It is in the newest checkpoint. One that would have to be unpickled is not taken from there: it must be given.
    """
    from paceline.air.checkpoint_trust import code_parts
    from paceline.air.constants import CHECKPOINT_PREPROCESSOR_FILE
    from paceline.run.history import load_result

    try:
        checkpoint = load_result(path, filesystem).checkpoint
        if checkpoint is None or CHECKPOINT_PREPROCESSOR_FILE in code_parts(checkpoint):
            return given
        stored = checkpoint.get_preprocessor()
    except (CheckpointError, FileNotFoundError):  # what is wrong with it is told when the run starts
        return given
    if stored is not None and given is not None and _settings_of(stored) != _settings_of(given):
        raise RestoreError(
            f"The run has trained with {stored!r}; restore() was given {given!r}. A model cannot continue with "
            "data that is prepared in another way: leave preprocessor= out, or start a new run."
        )
    return given if stored is None else stored


def _settings_of(preprocessor: Preprocessor) -> tuple[type, Any]:
    """All that decides what it does but for what it learned."""
    return type(preprocessor), _without_stats(preprocessor.to_state())


def _without_stats(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _without_stats(value) for name, value in state.items() if name != "stats"}
    return [_without_stats(value) for value in state] if isinstance(state, list) else state


def preprocessed(datasets: Mapping[str, Any], preprocessor: Any) -> dict[str, Any]:
    """For trainers that run in one process: functions called, the preprocessor fitted and applied to all."""
    from paceline.data.ingest.prepare import as_dataset, fit_preprocessor

    made = {name: as_dataset(name, value) for name, value in datasets.items()}
    if preprocessor is None:
        return made
    note = fit_preprocessor(preprocessor, made, complete_configs(None, made))
    if note:
        warn_at_users_line(note)
    return {name: preprocessor.transform(dataset) for name, dataset in made.items()}


def missing_again(earlier: Sequence[str], given: Mapping[str, Any] | None) -> None:
    """A restored run needs the same datasets: they are not stored with it."""
    now = sorted(given or {})
    if sorted(earlier) != now:
        raise RestoreError(
            f"The run had the datasets {sorted(earlier)}, and restore() was given {now}: pass datasets= with exactly "
            "the same names (data is not stored with a run)."
        )
