"""From a worker's rows of the datasets to LightGBM's datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import ConfigError, DataError
from paceline.train.lightgbm.agreement import agreed_features, common_bins, row_counts
from paceline.train.lightgbm.features import Features
from paceline.train.lightgbm.metrics import Shares, shares_of
from paceline.train.lightgbm.params import value_of, without
from paceline.train.lightgbm.rows import COLUMN_KEYWORDS, Rows, check_labels, read_rows
from paceline.train.trees.shard import dataset_names

if TYPE_CHECKING:
    import lightgbm as lgb

    from paceline.train.trees.task import TreeTask

KEYWORDS = (*COLUMN_KEYWORDS, "categorical_feature", "feature_name", "free_raw_data", "ignore")
"""What `dmatrix_params` may hold for a dataset."""
_NOT_STORABLE = frozenset('\t\n\r\v\f",:[]{}')


@dataclass(frozen=True)
class Matrix:
    """A dataset for LightGBM, and what this worker's part of it counts in a mean over all workers."""

    dataset: lgb.Dataset
    shares: Shares


def read_matrices(
    task: TreeTask, params: Mapping[str, Any], known: Features | None
) -> tuple[dict[str, Matrix], Features]:
    """This worker's part of every dataset, "train" first; `known` are the features of a model to train further."""
    rows = read_rows(task, TRAIN_DATASET_KEY)
    check_labels(rows, value_of(params, "objective"))
    counts = row_counts(rows.table.num_rows, has_queries=rows.group is not None)
    features = known or agreed_features(rows)
    train = _train_matrix(rows, counts, features, params)
    matrices = {TRAIN_DATASET_KEY: train}
    for name in dataset_names():
        if name != TRAIN_DATASET_KEY:
            evaluation = read_rows(task, name)
            check_labels(evaluation, value_of(params, "objective"))
            matrices[name] = _evaluation_matrix(evaluation, features, train.dataset, rows)
    return matrices, features


def _train_matrix(rows: Rows, counts: list[int], features: Features, params: Mapping[str, Any]) -> Matrix:
    from paceline.train.lightgbm.continued_dataset import ContinuedDataset

    table = features.table(rows.table, rows.where)
    plain = {name: value for name, value in without(params, "categorical_feature").items() if not callable(value)}
    settings = {
        "categorical_feature": _categorical(features, params, rows.settings),
        "feature_name": _feature_names(features, rows.settings),
    }
    dataset = ContinuedDataset(
        table,
        label=rows.label,
        weight=rows.weight,
        group=rows.group,
        init_score=rows.init_score,
        position=rows.position,
        reference=common_bins(table, counts, plain, settings),
        params=plain,
        free_raw_data=rows.settings.get("free_raw_data", True),
        **settings,
    )
    return Matrix(dataset, shares_of(table.num_rows, rows.weight, rows.group))


def _evaluation_matrix(rows: Rows, features: Features, train: lgb.Dataset, train_rows: Rows) -> Matrix:
    """Where this worker got no rows, which LightGBM cannot take, a row of "train" stands in and counts nothing."""
    from paceline.train.lightgbm.continued_dataset import ContinuedDataset

    if not rows.table.num_rows:
        row = train_rows.table.slice(0, 1)
        group = None if rows.group is None else [1]
        stand_in = ContinuedDataset(
            features.table(row, train_rows.where), label=train_rows.label[:1], group=group, reference=train
        )
        return Matrix(stand_in, {"weight": 0.0, "rows": 0.0, "queries": 0.0})
    dataset = ContinuedDataset(
        features.table(rows.table, rows.where),
        label=rows.label,
        weight=rows.weight,
        group=rows.group,
        init_score=rows.init_score,
        position=rows.position,
        reference=train,
        free_raw_data=rows.settings.get("free_raw_data", True),
    )
    return Matrix(dataset, shares_of(rows.table.num_rows, rows.weight, rows.group))


def _feature_names(features: Features, settings: Mapping[str, Any]) -> list[str]:
    given = settings.get("feature_name", "auto")
    if given == "auto":
        return _check_storable(features.names)
    if not isinstance(given, list) or len(given) != len(features.names):
        raise ConfigError(
            f"dmatrix_params['train']['feature_name'] must be a list of {len(features.names)} names, one for each of "
            f"{', '.join(features.names[:8])}..."
        )
    return _check_storable([str(name) for name in given])


def _check_storable(names: list[str]) -> list[str]:
    """Refuse names that LightGBM does not take, or writes into a model file that cannot be read again."""
    wrong = [name for name in names if not name or not _NOT_STORABLE.isdisjoint(name)]
    stored = [name.replace(" ", "_") for name in names]  # LightGBM does so
    wrong += [name for name, kept in zip(names, stored, strict=True) if stored.count(kept) > 1]
    if wrong:
        raise DataError(
            f"LightGBM cannot store features called {', '.join(map(repr, dict.fromkeys(wrong)))}: names must differ "
            "(a space is stored as '_'), must not be empty, and must be without tabs, line breaks and any of "
            '" , : [ ] { }. Rename the columns, or give the features other names: '
            "dmatrix_params={'train': {'feature_name': [...]}}."
        )
    return names


def _categorical(features: Features, params: Mapping[str, Any], settings: Mapping[str, Any]) -> list[int]:
    """The positions of all categorical features: those that hold categories, and those that were named."""
    named = settings.get("categorical_feature", value_of(params, "categorical_feature", "auto"))
    if isinstance(named, str):
        text = named.removeprefix("name:")
        by_name = text != named
        parts = [part.strip() for part in text.split(",") if part.strip() and text != "auto"]
        named = parts if by_name or not all(part.isdecimal() for part in parts) else [int(part) for part in parts]
    names = features.names
    places = set(features.categorical)
    for each in named:
        if each in names:
            places.add(names.index(each))
        elif isinstance(each, int) and 0 <= each < len(names):
            places.add(each)
        else:
            raise ConfigError(f"categorical_feature names {each!r}; the features are {', '.join(names)}.")
    return sorted(places)
