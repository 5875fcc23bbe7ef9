"""What the workers agree on before they train: categories, and the borders of the bins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.air import session as session_slot
from paceline.air.errors import DataError
from paceline.train.lightgbm.features import Features, describe_features
from paceline.train.lightgbm.network import gather
from paceline.train.lightgbm.params import value_of, without
from paceline.train.lightgbm.rows import Rows

if TYPE_CHECKING:
    import lightgbm as lgb
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_SAMPLE_ROWS = 200_000
"""LightGBM's own default of bin_construct_sample_cnt."""
_SAMPLE_BYTES = 256 * 2**20
_LEAST_SAMPLE_ROWS = 20_000
_ZERO = 1e-35
"""What is not larger is 0 for LightGBM."""


def agreed_features(rows: Rows) -> Features:
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
            f"The dataset 'train' has {sum(counts)} rows for {len(counts)} workers, and rank {counts.index(0)} got "
            f"none{told}. LightGBM cannot train without rows: use fewer workers."
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
    import lightgbm as lgb
    import pyarrow as pa

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
    import pyarrow.compute as pc

    return not pc.all(pc.is_null(column, nan_is_null=True)).as_py()


def _without_zeros(column: pa.ChunkedArray) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """The values of a column that are not 0, and in which rows they are: as LightGBM takes samples."""
    import numpy as np

    values = column.to_numpy().astype(np.float64)
    places = np.flatnonzero(~(np.abs(values) <= _ZERO))  # missing ones are kept
    return values[places], places.astype(np.int32)


def _packed(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _unpacked(content: bytes) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_stream(content).read_all()
