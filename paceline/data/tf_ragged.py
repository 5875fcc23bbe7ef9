"""Columns whose rows differ in shape, as ragged tensors of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.errors import DataError
from paceline.data.formats import equal_lists, numbers_inside
from paceline.data.tensors import RaggedTensorType, tensor_to_numpy


def is_uneven(column: pa.Array) -> bool:
    """True if the column holds arrays of numbers that do not make one tensor together."""
    if isinstance(column.type, RaggedTensorType):
        return True
    return _is_list(column.type) and numbers_inside(column.type) and bool(len(column)) and not _is_even(column)


def ragged_ranks(schema: pa.Schema, columns: Iterable[str], first_rows: Callable[[], pa.RecordBatch]) -> dict[str, int]:
    """The columns that become ragged tensors, and how many dimensions a row of theirs has.

    Types do not say it: lists may all have one length, and ragged tensors any number of dimensions. So the first
    rows decide.
    """
    candidates = [name for name in dict.fromkeys(columns) if name in schema.names and _may_differ(schema.field(name))]
    if not candidates:
        return {}
    rows = first_rows()
    firsts = {name: rows.column(name) for name in candidates}
    return {name: len(_parts(column, name)[1]) for name, column in firsts.items() if is_uneven(column)}


def ragged_tensor(column: pa.Array, name: str) -> Any:
    """A tf.RaggedTensor with a row for each of the column's."""
    import tensorflow as tf

    values, lengths = _parts(column, name)
    return tf.RaggedTensor.from_nested_row_lengths(values, lengths)


def _parts(column: pa.Array, name: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """All elements, and for each dimension the lengths along it, outermost first."""
    if column.null_count:
        raise DataError(f"Column {name!r} has nulls, which a ragged tensor cannot hold. Fill them first (map_batches).")
    if isinstance(column.type, RaggedTensorType):
        return _parts_of_tensors(list(tensor_to_numpy(column, copy=False)), name)
    lengths = []
    while _is_list(column.type):
        lengths.append(pc.list_value_length(column).to_numpy().astype(np.int64))
        column = column.flatten()
    return column.to_numpy(zero_copy_only=False), lengths


def _parts_of_tensors(cells: list[np.ndarray], name: str) -> tuple[np.ndarray, list[np.ndarray]]:
    dimensions = {cell.ndim for cell in cells}
    if len(dimensions) > 1:
        raise DataError(f"Column {name!r} has arrays of {sorted(dimensions)} dimensions: one tensor cannot hold them.")
    lengths, outer = [], np.ones(len(cells), np.int64)
    for axis in range(dimensions.pop() if dimensions else 0):
        sizes = np.array([cell.shape[axis] for cell in cells], np.int64)
        lengths.append(np.repeat(sizes, outer))
        outer = outer * sizes
    return np.concatenate([cell.reshape(-1) for cell in cells]), lengths


def _is_even(column: pa.Array) -> bool:
    """True if the lists have one length, on all levels."""
    while _is_list(column.type):
        joined = equal_lists(column)
        if joined is None:
            return False
        column, _ = joined
    return True


def _may_differ(field: pa.Field) -> bool:
    kind = field.type
    if isinstance(kind, RaggedTensorType):
        return True
    return _is_list(kind) and numbers_inside(kind)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
