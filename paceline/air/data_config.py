"""DatasetConfig and DataConfig: which datasets are split over workers, and how."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, get_args

from paceline.air.checks import (
    ShortRepr,
    check_bool,
    check_choice,
    check_kind,
    names_what_was_meant,
    warn_at_users_line,
    whole_number,
)
from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import ConfigError

Uneven: TypeAlias = Literal["equal", "all", "error", "join", "pad_mask"]
UNEVEN_CHOICES = get_args(Uneven)
WILDCARD = "*"


@names_what_was_meant()
@dataclass(repr=False)
class DatasetConfig(ShortRepr):
    """How one dataset reaches the workers. None means: not said; `fill_defaults` decides."""

    fit: bool | None = None
    """Fit the preprocessor on this dataset."""
    split: bool | None = None
    """Give each worker its part; otherwise every worker gets the whole."""
    required: bool | None = None
    """Refuse a trainer that was not given this dataset."""
    transform: bool | None = None
    """Apply the preprocessor."""
    max_object_store_memory_fraction: float | None = None
    """Share of memory for reading ahead; -1: no limit of its own."""
    global_shuffle: bool | None = None
    """Shuffle all rows before each epoch."""
    randomize_block_order: bool | None = None
    """Shuffle the order of blocks before each epoch."""
    per_epoch_preprocessor: Any = None
    """A preprocessor that is applied anew in each epoch."""
    use_stream_api: bool | None = None
    """Old switch: datasets always stream here."""
    stream_window_size: float | None = None
    """Old size of the streaming window."""
    uneven: Uneven | None = None
    """Rows that do not divide by the number of workers: "equal" leaves some out in turn and says
    so, "all" gives some workers one more, "error" refuses. "join" gives some workers one more and lets those that have
    no more batches take part in what the others do (PyTorch); "pad_mask" fills up batches so that all workers have
    equally many, with a column that says which rows are real."""
    seed: int | None = None
    """Of what is shuffled; None: one is drawn, and stays with the run and its checkpoints."""

    def __post_init__(self) -> None:
        for name in ("fit", "split", "required", "transform", "global_shuffle", "randomize_block_order"):
            if getattr(self, name) is not None:
                check_bool(getattr(self, name), name)
        if self.uneven is not None:
            check_choice(self.uneven, "uneven", UNEVEN_CHOICES)
        self.seed = _checked_seed(self.seed)
        share = self.max_object_store_memory_fraction
        if share is not None and share != -1 and not 0 <= share <= 1:
            raise ConfigError(f"max_object_store_memory_fraction is {share!r}: use 0 to 1, or -1 for no limit.")
        if self.global_shuffle and self.randomize_block_order:
            raise ConfigError("global_shuffle shuffles all rows already: leave randomize_block_order out.")

    def fill_defaults(self) -> DatasetConfig:
        """A copy in which everything is said."""
        return DatasetConfig(
            fit=self.fit or False,
            split=self.split or False,
            required=self.required or False,
            transform=True if self.transform is None else self.transform,
            max_object_store_memory_fraction=(
                -1.0 if self.max_object_store_memory_fraction is None else self.max_object_store_memory_fraction
            ),
            global_shuffle=self.global_shuffle or False,
            randomize_block_order=(
                not self.global_shuffle if self.randomize_block_order is None else self.randomize_block_order
            ),
            per_epoch_preprocessor=self.per_epoch_preprocessor,
            use_stream_api=self.use_stream_api or False,
            stream_window_size=self.stream_window_size,
            uneven=self.uneven or "equal",
            seed=self.seed,
        )

    @staticmethod
    def merge(a: Mapping[str, DatasetConfig], b: Mapping[str, DatasetConfig] | None) -> dict[str, DatasetConfig]:
        """Configs by dataset name; what `b` says wins over what `a` says."""
        merged = dict(a)
        for name, config in (b or {}).items():
            check_kind(config, DatasetConfig, f"dataset_config[{name!r}]")
            merged[name] = _overlay(merged[name], config) if name in merged else config
        return merged

    @staticmethod
    def validated(config: Mapping[str, DatasetConfig], datasets: Mapping[str, Any] | None) -> dict[str, DatasetConfig]:
        """One complete config per dataset there is; "*" speaks for those not named."""
        datasets = datasets or {}
        for name, entry in config.items():
            if entry.required and name not in datasets:
                raise ConfigError(f"The dataset {name!r} is required: pass datasets={{{name!r}: ...}}.")
        rest = config.get(WILDCARD)
        complete: dict[str, DatasetConfig] = {}
        for name in datasets:
            said = config.get(name, rest)
            if said is None:
                raise ConfigError(
                    f"There is no dataset_config for {name!r}: add one, or use {WILDCARD!r} for all that are not named."
                )
            said = _overlay(rest, said) if rest else said
            complete[name] = replace(said, uneven=said.uneven or usual_uneven(name)).fill_defaults()
        fitted = [name for name, entry in complete.items() if entry.fit]
        if len(fitted) > 1:
            raise ConfigError(f"The preprocessor is fitted on one dataset, but fit=True is set for {fitted}.")
        return complete


def usual_uneven(name: str) -> Uneven:
    """Training must not hang on a rank that has a batch more; evaluation must see every row once."""
    return "equal" if name == TRAIN_DATASET_KEY else "all"


def _checked_seed(seed: Any) -> int | None:
    return None if seed is None else whole_number(seed, "seed", least=0, most=2**62 - 1)


def _overlay(below: DatasetConfig, above: DatasetConfig) -> DatasetConfig:
    chosen: dict[str, Any] = {}
    for field in fields(DatasetConfig):
        value = getattr(above, field.name)
        chosen[field.name] = getattr(below, field.name) if value is None else value
    return DatasetConfig(**chosen)


@names_what_was_meant()
@dataclass(repr=False)
class DataConfig(ShortRepr):
    """Which datasets are split over workers; the others go whole to every worker."""

    datasets_to_split: Literal["all"] | list[str] | None = None
    """Names, or "all"; None splits "train" alone."""
    execution_options: Any = None
    """Taken for old code; has no effect."""
    uneven: Uneven | None = None
    """As in DatasetConfig; None means "equal" for "train" and "all" for others."""
    shuffle: Literal["rows", "blocks"] | None = None
    """Shuffle the datasets that are split, anew for each epoch: every row, or only the order of blocks."""
    seed: int | None = None
    """Of the shuffle; None: one is drawn, and stays with the run and its checkpoints."""

    def __post_init__(self) -> None:
        names = self.datasets_to_split
        if isinstance(names, str) and names != "all":
            raise ConfigError(f"datasets_to_split is {names!r}: use a list of dataset names, [{names!r}], or 'all'.")
        listed = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if names is not None and names != "all" and not listed:
            raise ConfigError(f"datasets_to_split is {names!r}: use a list of dataset names, or 'all'.")
        if self.uneven is not None:
            check_choice(self.uneven, "uneven", UNEVEN_CHOICES)
        if self.execution_options is not None:
            warn_at_users_line("DataConfig(execution_options=...) has no effect: datasets here need no such options.")
        if self.shuffle is not None:
            check_choice(self.shuffle, "shuffle", ("rows", "blocks"))
        self.seed = _checked_seed(self.seed)

    def splits(self, name: str) -> bool:
        """Whether this dataset is split."""
        if self.datasets_to_split is None:
            return name == TRAIN_DATASET_KEY
        return self.datasets_to_split == "all" or name in self.datasets_to_split

    def uneven_for(self, name: str) -> Uneven:
        """What happens to this dataset's rows that do not divide."""
        return self.uneven or usual_uneven(name)

    def as_dataset_configs(self, names: Iterable[str]) -> dict[str, DatasetConfig]:
        """The same, said for each dataset."""
        configs = {}
        for name in names:
            splits = self.splits(name)
            shuffle = self.shuffle if splits else None
            configs[name] = DatasetConfig(
                fit=name == TRAIN_DATASET_KEY,
                split=splits,
                global_shuffle=shuffle == "rows",
                randomize_block_order=shuffle == "blocks",
                uneven=self.uneven_for(name),
                seed=self.seed,
            )
        return configs
