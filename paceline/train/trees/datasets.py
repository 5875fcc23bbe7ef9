"""How the datasets of a tree trainer reach its workers, and what must be in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.data_config import WILDCARD, DataConfig, DatasetConfig
from paceline.air.errors import ConfigError, MissingDatasetError
from paceline.train.datasets import complete_configs


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
