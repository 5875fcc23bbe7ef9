"""From this rank's rows of the datasets to XGBoost's matrices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import xgboost

from paceline.air import session
from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import ConfigError, DataError
from paceline.data.column_arrays import contiguous
from paceline.engine.places import usable_memory
from paceline.train.trees.task import (
    TreeTask,
    check_not_empty,
    count_rows,
    dataset_names,
    is_split,
    read_shard,
    shard_batches,
)
from paceline.train.xgboost.backend import Place
from paceline.train.xgboost.features import RowValues, agreed_categories, categories_in, feature_table, is_categorical

PASSED_ON = ("missing", "feature_weights", "nthread", "max_bin")
"""Entries of dmatrix_params that XGBoost's matrices take as they are."""

_REFUSED_IN_NAMES = frozenset("[]<")

MEMORY_PART = 0.3
"""How much of a worker's share of memory the rows may take: reading them and building the matrix takes two and a half
times as much for a moment."""


class MatrixReader:
    """Builds the matrix of every dataset.

    Training by histograms takes matrices of quantiles, which hold a byte or two per value and are built straight
    from Arrow; evaluation sets use the bins of the training set. Other tree methods need the values themselves.
    """

    def __init__(self, task: TreeTask, params: Mapping[str, Any], model: xgboost.Booster | None) -> None:
        """`model`: the one that is trained further; its features stay what they are."""
        self._task = task
        self._params = params
        self._names = dataset_names()
        for name in self._names:
            check_not_empty(name)
        objective = params.get("objective")
        self._rows = {
            name: RowValues(task.label_column, self._entries(name), _told(name), objective) for name in self._names
        }
        self._columns = {TRAIN_DATASET_KEY: self._train_columns(model)}
        self._columns.update(
            {name: self._evaluation_columns(name) for name in self._names if name not in self._columns}
        )
        self._categories = agreed_categories({name: self._feature_schema(name) for name in self._names})
        if model is not None:
            self._categories.update(categories_in(model))

    def read(self) -> dict[str, xgboost.DMatrix]:
        """The matrices by dataset, that of "train" first; all ranks call it."""
        matrices: dict[str, xgboost.DMatrix] = {}
        for name in self._names:
            self._check_categorical(name)
            matrices[name] = self._matrix(name, matrices.get(TRAIN_DATASET_KEY))
            _release_unused()
        return matrices

    # -- one dataset --------------------------------------------------------------------------

    def _matrix(self, name: str, train: xgboost.DMatrix | None) -> xgboost.DMatrix:
        options = {key: value for key, value in self._entries(name).items() if key in PASSED_ON}
        options["nthread"] = options.get("nthread") or self._params.get("nthread")
        options["enable_categorical"] = self._has_categories(name)
        by_quantiles = trains_by_quantiles(self._params)
        options["max_bin"] = self._params.get("max_bin") if by_quantiles else None
        external = self._is_external(name)
        if external and not by_quantiles:
            raise ConfigError(
                f"dmatrix_params[{name!r}]: external_memory works with tree_method='hist' (the default) only."
            )
        if external:
            return self._external_matrix(name, train, options)
        queries = self._entries(name).get("qid")
        arguments = self._arguments(name, read_shard(name, query_column=queries, columns=self._columns[name]))
        arguments.update(options)
        _release_unused()
        if by_quantiles:
            return xgboost.QuantileDMatrix(**arguments, ref=train)
        del arguments["max_bin"]
        return xgboost.DMatrix(**arguments)

    def _external_matrix(self, name: str, train: xgboost.DMatrix | None, options: dict[str, Any]) -> xgboost.DMatrix:

        entries = self._entries(name)

        def batches() -> Iterator[pa.RecordBatch]:
            return shard_batches(name, query_column=entries.get("qid"), columns=self._columns[name])

        def arguments(table: pa.Table) -> dict[str, Any]:
            return {**self._arguments(name, table), **weights}

        weights = {"feature_weights": options.pop("feature_weights")} if "feature_weights" in options else {}
        place = Place.here()
        folder = place.scratch
        assert folder is not None
        prefix = os.path.join(folder, f"{place.rank}-{self._names.index(name)}")
        pages = BatchPages(batches, arguments, self._rows[name].restart, prefix, entries.get("qid"))
        return xgboost.ExtMemQuantileDMatrix(pages, **options, ref=train)

    def _arguments(self, name: str, table: pa.Table) -> dict[str, Any]:
        """The rows of a table as keyword arguments of a matrix."""
        beside = self._rows[name].of(table)
        columns = {column: table.column(column) for column in self._feature_names(name)}
        if not columns:
            raise DataError(f"{_told(name)} has no column that is a feature; it has {', '.join(table.column_names)}.")
        del table
        features = feature_table(columns, _told(name), self._categories)
        names = self._same_as_train(name, "feature_names")
        if names is not None:
            if len(names) != features.num_columns:
                raise DataError(
                    f"dmatrix_params[{name!r}]['feature_names'] has {len(names)} names for "
                    f"{features.num_columns} features: {', '.join(features.column_names)}."
                )
            features = features.rename_columns(list(names))
        refused = [feature for feature in features.column_names if not _REFUSED_IN_NAMES.isdisjoint(feature)]
        if refused:
            raise DataError(
                f"{_told(name)}: XGBoost takes no features with any of [ ] < in their names: "
                f"{', '.join(map(repr, refused))}. Rename the columns, or give the features other names: "
                "dmatrix_params={'train': {'feature_names': [...]}}."
            )
        return {"data": features, "feature_types": self._same_as_train(name, "feature_types"), **beside}

    # -- what is known before rows are read -----------------------------------------------------

    def _entries(self, name: str) -> Mapping[str, Any]:
        return self._task.matrix_params.get(name, {})

    def _same_as_train(self, name: str, entry: str) -> Any:
        """What is said about features holds for all datasets, unless one has an entry of its own."""
        return self._entries(name).get(entry, self._entries(TRAIN_DATASET_KEY).get(entry))

    def _train_columns(self, model: xgboost.Booster | None) -> list[str]:
        """In the order of the model's features, those of vectors included: "x_0", "x_1", ..."""
        columns = self._kept_columns(TRAIN_DATASET_KEY)
        places = {feature: place for place, feature in enumerate((model and model.feature_names) or [])}
        return sorted(columns, key=lambda column: places.get(column, places.get(f"{column}_0", len(places))))

    def _evaluation_columns(self, name: str) -> list[str]:
        """Those that the model is trained on, in their order, and those that are no features; others are left out."""
        there = self._kept_columns(name)
        features = self._feature_names(TRAIN_DATASET_KEY)
        missing = [column for column in features if column not in there]
        if missing:
            raise DataError(
                f"{_told(name)} lacks {', '.join(map(repr, missing))}, which the model is trained on; it has "
                f"{', '.join(there)}."
            )
        return [*features, *(column for column in there if column in self._rows[name].names - set(features))]

    def _kept_columns(self, name: str) -> list[str]:
        """All but those to be ignored."""
        there = session.get_dataset_shard(name).schema().names
        ignored = self._entries(name).get("ignore", [])
        ignored = [ignored] if isinstance(ignored, str) else list(ignored)
        unknown = [column for column in ignored if column not in there]
        if unknown:
            raise DataError(
                f"dmatrix_params[{name!r}]['ignore'] names {', '.join(map(repr, unknown))}; {_told(name)} has the "
                f"columns {', '.join(there)}."
            )
        return [column for column in there if column not in ignored]

    def _feature_names(self, name: str) -> list[str]:
        return [column for column in self._columns[name] if column not in self._rows[name].names]

    def _feature_schema(self, name: str) -> pa.Schema:
        schema = session.get_dataset_shard(name).schema()
        return pa.schema([schema.field(column) for column in self._feature_names(name)])

    def _check_categorical(self, name: str) -> None:
        columns = [field.name for field in self._feature_schema(name) if is_categorical(field.type)]
        if columns and self._entries(name).get("enable_categorical") is False:
            raise DataError(
                f"dmatrix_params[{name!r}] has enable_categorical=False, but these columns are categories: "
                f"{', '.join(columns)}. Encode them with a preprocessor, or put them into 'ignore'."
            )

    def _has_categories(self, name: str) -> bool:
        types = self._same_as_train(name, "feature_types") or []
        return bool(self._categories) or "c" in types

    def _is_external(self, name: str) -> bool:
        """Asked for, or the rows would not fit; the same on every rank and at every attempt."""
        asked = self._entries(name).get("external_memory")
        if asked is not None:
            return bool(asked)
        limit = usable_memory()
        if limit is None or not trains_by_quantiles(self._params):
            return False
        workers = session.get_world_size() if is_split(name) else 1
        rows = count_rows(name) / workers
        return rows * _row_bytes(self._feature_schema(name)) > MEMORY_PART * limit / session.get_local_world_size()


def trains_by_quantiles(params: Mapping[str, Any]) -> bool:
    """Whether trees are grown on histograms, as XGBoost does unless told otherwise."""
    return params.get("tree_method", "auto") in ("auto", "hist") and "updater" not in params


def _release_unused() -> None:
    """Give back what reading took, which Arrow would keep for more rows: XGBoost needs memory now."""
    pa.default_memory_pool().release_unused()


def _row_bytes(schema: pa.Schema) -> float:
    """About what a row takes in Arrow."""
    return sum(_value_bytes(field.type) for field in schema)


def _value_bytes(data_type: pa.DataType) -> float:
    if isinstance(data_type, pa.FixedShapeTensorType):
        data_type = data_type.storage_type
    if pt.is_fixed_size_list(data_type):
        return float(data_type.list_size) * _value_bytes(data_type.value_type)
    try:
        return float(data_type.bit_width) / 8
    except ValueError:  # text: its length is not known
        return 16.0


def _told(name: str) -> str:
    return f"dataset {name!r}"


PAGE_BYTES = 64 << 20
"""Rows that XGBoost gets, compresses and stores at a time: fewer pages are read faster, and a few are in memory."""


class BatchPages(xgboost.DataIter):
    """Feeds a matrix from batches of rows; XGBoost goes through them several times while it builds it."""

    def __init__(
        self,
        batches: Callable[[], Iterator[pa.RecordBatch]],
        arguments: Callable[[pa.Table], Mapping[str, Any]],
        restart: Callable[[], None],
        cache_prefix: str,
        query_column: str | None,
    ) -> None:
        super().__init__(cache_prefix=cache_prefix)
        self._batches = batches
        self._arguments = arguments
        self._restart = restart
        self._query_column = query_column
        self._pages: Iterator[pa.Table] = iter(())

    def next(self, input_data: Callable[..., None]) -> bool:
        page = next(self._pages, None)
        if page is None:
            return False
        input_data(**self._arguments(page))
        return True

    def reset(self) -> None:
        self._restart()
        self._pages = _pages(self._batches(), self._query_column)


def _pages(batches: Iterator[pa.RecordBatch], query_column: str | None) -> Iterator[pa.Table]:
    """Batches put together to tables of about one size.

    XGBoost ends a query where a page ends, so the rows of the last query of a page wait for those that follow.
    """
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.nbytes for each in waiting) >= PAGE_BYTES:
            page = pa.Table.from_batches(waiting)
            whole = page.num_rows if query_column is None else _start_of_last_query(page.column(query_column))
            if whole:
                yield page.slice(0, whole)
                waiting = page.slice(whole).to_batches()
    if waiting:
        yield pa.Table.from_batches(waiting)


def _start_of_last_query(column: pa.ChunkedArray) -> int:
    values = contiguous(column)
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    ends = np.flatnonzero(np.diff(encoded.indices.to_numpy(zero_copy_only=False)))
    return int(ends[-1]) + 1 if len(ends) else 0
