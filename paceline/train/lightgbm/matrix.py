"""From a worker's rows of the datasets to LightGBM's datasets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import lightgbm as lgb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air import session as session_slot
from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import ConfigError, DataError
from paceline.air.words import counted
from paceline.train.lightgbm.backend import gather
from paceline.train.lightgbm.features import (
    Features,
    ShardRows,
    check_labels,
    describe_features,
    read_rows,
)
from paceline.train.lightgbm.metrics import Shares, shares_of
from paceline.train.lightgbm.params import value_of, without
from paceline.train.trees.task import dataset_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paceline.train.trees.task import TreeTask


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


def _train_matrix(rows: ShardRows, counts: list[int], features: Features, params: Mapping[str, Any]) -> Matrix:
    table = features.table(rows.table, rows.where)
    plain = {name: value for name, value in without(params, "categorical_feature").items() if not callable(value)}
    settings: dict[str, Any] = {
        "categorical_feature": _categorical(features, params, rows.settings),
        "feature_name": _feature_names(features, rows.settings),
    }
    return _matrix(rows, table, reference=common_bins(table, counts, plain, settings), params=plain, **settings)


def _evaluation_matrix(rows: ShardRows, features: Features, train: lgb.Dataset, train_rows: ShardRows) -> Matrix:
    """Where this worker got no rows, which LightGBM cannot take, a row of "train" stands in and counts nothing."""
    if rows.table.num_rows:
        return _matrix(rows, features.table(rows.table, rows.where), reference=train)
    row = features.table(train_rows.table.slice(0, 1), train_rows.where)
    group = None if rows.group is None else [1]
    stand_in = ContinuedDataset(row, label=train_rows.label[:1], group=group, reference=train)
    return Matrix(stand_in, {"weight": 0.0, "rows": 0.0, "queries": 0.0})


def _matrix(rows: ShardRows, table: pa.Table, **settings: Any) -> Matrix:
    dataset = ContinuedDataset(
        table,
        label=rows.label,
        weight=rows.weight,
        group=rows.group,
        init_score=rows.init_score,
        position=rows.position,
        free_raw_data=rows.settings.get("free_raw_data", True),
        **settings,
    )
    return Matrix(dataset, shares_of(table.num_rows, rows.weight, rows.group))


class ContinuedDataset(lgb.Dataset):
    """Keeps the initial scores of its rows when training continues from a model.

    LightGBM would put the model's predictions in their place, and train another model than without the break.
    """

    def __init__(self, data: Any, *, init_score: Any = None, **settings: Any) -> None:
        super().__init__(data, init_score=init_score, **settings)
        self._given_init_score = init_score

    def _set_init_score_by_predictor(self, predictor: Any, data: Any, used_indices: Any) -> ContinuedDataset:
        predicted = predictor.predict(data=data, raw_score=True)
        given = self._given_init_score
        self.set_init_score(predicted if given is None else predicted + given)
        return self


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


# -- what the workers agree on before they train: categories, and the borders of the bins ----------


_SAMPLE_ROWS = 200_000
"""LightGBM's own default of bin_construct_sample_cnt."""
_SAMPLE_BYTES = 256 * 2**20
_LEAST_SAMPLE_ROWS = 20_000
_ZERO = 1e-35
"""What is not larger is 0 for LightGBM."""


def agreed_features(rows: ShardRows) -> Features:
    """The same on all workers: a category has one number, wherever its rows are."""
    own = describe_features(rows.table, rows.no_features, rows.where)
    if not own.categories:
        return own
    found = [json.loads(value) for value in gather(json.dumps(own.categories).encode())]
    together = {
        column: tuple(sorted({value for categories in found for value in categories[column]}))
        for column in own.categories
    }
    return replace(own, categories=together)


def row_counts(own: int, *, has_queries: bool) -> list[int]:
    """How many training rows each worker has; LightGBM cannot do without."""
    counts = [int.from_bytes(value) for value in gather(own.to_bytes(8))]
    if not all(counts):
        told = " (all rows of a query stay together)" if has_queries else ""
        raise DataError(
            f"The dataset 'train' has {counted(sum(counts), 'row')} for {len(counts)} workers, and rank "
            f"{counts.index(0)} got none{told}. LightGBM cannot train without rows: use fewer workers."
        )
    return counts


def common_bins(
    table: pa.Table, counts: list[int], params: Mapping[str, Any], settings: Mapping[str, Any]
) -> lgb.Dataset | None:
    """A dataset without rows of its own, from which each worker's gets the borders of its bins.

    By itself LightGBM finds the borders for a feature on the rows of a single worker. Where rows are sorted that worker
    has not seen most of the values, and the model is a poor one. Here they are found on a sample of all rows, the one
    that LightGBM takes in a single process, so that the bins are the same as there. None for one worker.
    """
    if len(counts) == 1:
        return None
    size = _sample_size(params, table.num_columns)
    sampling = {**without(params, "bin_construct_sample_cnt"), "bin_construct_sample_cnt": size}
    chosen = lgb.Dataset(None, params=sampling)._create_sample_indices(total_nrow=sum(counts))
    first = sum(counts[: session_slot.get_world_rank()])
    own = chosen[(chosen >= first) & (chosen < first + table.num_rows)] - first
    part = table if len(own) == table.num_rows else table.take(pa.array(own))
    sample = pa.concat_tables([_unpacked(value) for value in gather(_packed(part))])
    # LightGBM crashes on categories of which it sees none.
    filled = [place for place in settings["categorical_feature"] if _has_values(sample.column(place))]
    bins = lgb.Dataset(
        None, params={**params, "categorical_column": filled}, **{**settings, "categorical_feature": filled}
    )
    values, places = zip(*(_without_zeros(column) for column in sample.columns), strict=True)
    return bins._init_from_sample(list(values), list(places), sample_cnt=sample.num_rows, total_nrow=1)


def _sample_size(params: Mapping[str, Any], features: int) -> int:
    """As many rows as LightGBM would take, unless there are so many features that they would fill the memory."""
    wanted = int(value_of(params, "bin_construct_sample_cnt", _SAMPLE_ROWS))
    return min(wanted, max(_LEAST_SAMPLE_ROWS, _SAMPLE_BYTES // (8 * features)))


def _has_values(column: pa.ChunkedArray) -> bool:
    return not pc.all(pc.is_null(column, nan_is_null=True)).as_py()


def _without_zeros(column: pa.ChunkedArray) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """The values of a column that are not 0, and in which rows they are: as LightGBM takes samples."""
    values = column.to_numpy().astype(np.float64)
    places = np.flatnonzero(~(np.abs(values) <= _ZERO))  # missing ones are kept
    return values[places], places.astype(np.int32)


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _unpacked(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()
