"""What trainers do with `datasets=`, `dataset_config=` and `preprocessor=`: check them, and say who gets what."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.air.checks import warn_at_users_line
from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.data_config import WILDCARD, DataConfig, DatasetConfig
from paceline.air.errors import CheckpointError, ConfigError, RestoreError

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.data.ingest.request import Ingest
    from paceline.data.preprocessor import Preprocessor

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


def complete_configs(
    given: DataConfig | Mapping[str, DatasetConfig] | None, datasets: Mapping[str, Any]
) -> dict[str, DatasetConfig]:
    """One complete config per dataset. Without a config of the user's nothing is shuffled."""
    if given is None:
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
    for name in given:
        if name not in datasets and name != WILDCARD and (meant := difflib.get_close_matches(name, datasets, n=1)):
            raise ConfigError(f"dataset_config names {name!r}; there is no such dataset. Did you mean {meant[0]!r}?")
    return DatasetConfig.validated(DatasetConfig.merge(DEFAULT_DATASET_CONFIG, given), datasets)


def restored_configs(stored: Mapping[str, Mapping[str, Any]]) -> dict[str, DatasetConfig]:
    """The configs that an earlier driver wrote down."""
    return {name: DatasetConfig(**config) for name, config in stored.items()}


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
            f"The run has trained with {stored!r}; restore() was given {given!r}. A model cannot go on with "
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
