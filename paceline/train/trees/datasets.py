"""How the datasets of a tree trainer reach its workers, and what must be in them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.data_config import WILDCARD, DataConfig, DatasetConfig
from paceline.air.errors import ConfigError, DataError, MissingDatasetError
from paceline.train.arguments import complete_configs

if TYPE_CHECKING:
    import pyarrow as pa


def check_names(datasets: Mapping[str, Any], matrix_params: Mapping[str, Any], trainer: str) -> None:
    """ "train" is there, and what is said about datasets is said about those there are."""
    if TRAIN_DATASET_KEY not in datasets:
        raise MissingDatasetError(
            f"{trainer} trains on the dataset 'train', which was not given: pass datasets={{'train': ...}}"
            f"{f' (given: {sorted(datasets)})' if datasets else ''}."
        )
    if not isinstance(matrix_params, Mapping):
        raise ConfigError(f"dmatrix_params must be a dict by dataset name, not {type(matrix_params).__name__}.")
    for name in matrix_params:
        if name not in datasets:
            raise MissingDatasetError(
                f"dmatrix_params names the dataset {name!r}; the datasets are {sorted(datasets)}. It is a dict by "
                "dataset name: {'train': {'weight': 'column'}}."
            )


def check_entries(dataset: str, entries: Any, known: Sequence[str], columns: Sequence[str], label_column: str) -> None:
    """What `dmatrix_params` says about a dataset: `known` are the entries that there may be, `columns` those of them
    that name a column."""
    if not isinstance(entries, Mapping):
        raise ConfigError(f"dmatrix_params[{dataset!r}] must be a dict, not {type(entries).__name__}.")
    for keyword, value in entries.items():
        if keyword not in known:
            raise ConfigError(
                f"dmatrix_params[{dataset!r}] has no entry {keyword!r}.{meant(keyword, known)} "
                f"There are: {', '.join(sorted(known))}."
            )
        if keyword in columns and not isinstance(value, str):
            raise ConfigError(
                f"dmatrix_params[{dataset!r}][{keyword!r}] must be the name of a column, not {type(value).__name__}: "
                "workers take their rows of it along with the features."
            )
    ignored = entries.get("ignore", ())
    needed = {"label_column": label_column, **{name: entries[name] for name in columns if name in entries}}
    for keyword, column in needed.items():
        if column in ([ignored] if isinstance(ignored, str) else ignored):
            raise ConfigError(
                f"dmatrix_params[{dataset!r}]['ignore'] names {column!r}, which is needed: it is the {keyword}. It "
                "is no feature anyway."
            )


def check_queries(
    datasets: Iterable[str], matrix_params: Mapping[str, Mapping[str, Any]], keywords: Sequence[str]
) -> None:
    """Every dataset of a ranking says which rows belong to a query; `keywords` are the names of that entry."""
    for name in datasets:
        if not any(keyword in matrix_params.get(name, {}) for keyword in keywords):
            raise ConfigError(
                f"A ranking compares the rows of a query: say which column of the dataset {name!r} names it, "
                f"dmatrix_params={{{name!r}: {{{keywords[0]!r}: 'column'}}}}."
            )


def meant(word: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown word; nothing if none is near."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def tree_configs(
    given: Mapping[str, DatasetConfig] | DataConfig | None, datasets: Mapping[str, Any], *, in_parts: bool
) -> dict[str, DatasetConfig]:
    """One complete config per dataset. No row is left out, and the order is the files': shards stay what they are.

    Evaluation sets are dealt to the workers too where their metrics can be put together from parts (`in_parts`);
    otherwise every worker evaluates all of them.
    """
    complete_configs(given, datasets)  # what is wrong with it is told as for other trainers
    usual = {
        TRAIN_DATASET_KEY: DatasetConfig(fit=True, split=True, uneven="all", randomize_block_order=False),
        WILDCARD: DatasetConfig(split=in_parts, uneven="all", randomize_block_order=False),
    }
    if isinstance(given, DataConfig):
        if given.datasets_to_split is not None:
            usual[WILDCARD] = DatasetConfig(uneven="all", randomize_block_order=False)
        configs = given.as_dataset_configs(datasets)
        for config in configs.values():
            config.uneven = given.uneven or "all"
            config.split = config.split if given.datasets_to_split is not None else None
        given = configs
    complete = DatasetConfig.validated(DatasetConfig.merge(usual, given), datasets)
    for name, config in complete.items():
        if config.uneven in ("join", "pad_mask"):
            raise ConfigError(
                f"The dataset {name!r} has uneven={config.uneven!r}, which is for training in batches: trees take all "
                "rows of a worker at once. Use uneven='all'."
            )
    if not complete[TRAIN_DATASET_KEY].split:
        raise ConfigError(
            "The dataset 'train' must be split over the workers: given whole to each of them, every row would count "
            "once per worker."
        )
    return complete


def check_columns(datasets: Mapping[str, Any], wanted: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse names of columns that a dataset does not have; one that a function is to make is looked at later."""
    from paceline.data.dataset import Dataset

    for name, dataset in datasets.items():
        if not isinstance(dataset, Dataset):
            continue
        there = dataset.schema().names
        for argument, column in wanted[name].items():
            if column not in there:
                raise ConfigError(
                    f"{argument}={column!r}: the dataset {name!r} has no such column; it has {', '.join(there)}."
                )


def check_types(
    dataset: str, schema: pa.Schema, label_column: str, entries: Mapping[str, Any], no_features: set[str]
) -> None:
    """Refuse a label that is no number, dates as features, and a table without features: no library takes these."""
    import pyarrow.types as pt

    kind = schema.field(label_column).type
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_dictionary(kind) or pt.is_temporal(kind):
        raise DataError(
            f"The dataset {dataset!r}, column {label_column!r} (label_column) is of type {kind}; labels are numbers. "
            "A LabelEncoder of paceline.data.preprocessors numbers classes."
        )
    ignored = entries.get("ignore", ())
    left_out = {*no_features, *([ignored] if isinstance(ignored, str) else ignored)}
    features = [field for field in schema if field.name not in left_out]
    if not features:
        raise DataError(
            f"The dataset {dataset!r} has no features: there is no column besides {', '.join(schema.names)}."
        )
    for field in features:
        if pt.is_temporal(field.type):
            raise DataError(
                f"The dataset {dataset!r}, column {field.name!r} is of type {field.type}, which is no feature. Make "
                "numbers of it (days since a date, year, weekday) in a preprocessor or with map_batches(), or leave it "
                f"out: dmatrix_params={{{dataset!r}: {{'ignore': [{field.name!r}]}}}}."
            )
