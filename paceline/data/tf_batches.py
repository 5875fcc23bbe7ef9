"""Chunks to dicts of TensorFlow tensors, and whole datasets to tf.data.

As for torch: integers with nulls become floats with NaN, decimals float64, lists of one length a matrix. Lists of
several lengths become ragged tensors, strings and bytes string tensors; times are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.errors import ConfigError, DataError
from paceline.data.formats import equal_lists, numbers_inside
from paceline.data.numeric_columns import check_no_nan, dtypes_by_column, numeric_array
from paceline.data.tensors import RaggedTensorType, tensor_to_numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paceline.data.block import Chunk


def tf_columns(chunk: Chunk, dtypes: Any = None, ragged: Collection[str] = ()) -> dict[str, Any]:
    """All columns as tensors; TensorFlow copies what it is given.

    `dtypes`: a tf.DType for all columns, or a dict for some of them by name. `ragged`: columns that are ragged
    tensors even if this chunk's rows have one shape.
    """
    wanted = dtypes_by_column(chunk.schema.names, dtypes)
    columns = zip(chunk.schema.names, chunk.columns, strict=True)
    return {name: _tensor(column, name, wanted.get(name), name in ragged) for name, column in columns}


def _tensor(column: pa.Array, name: str, dtype: Any, ragged: bool) -> Any:
    import tensorflow as tf

    if ragged or is_uneven(column):
        tensor = ragged_tensor(column, name)
        return tensor if dtype is None else tf.cast(tensor, dtype)
    array = column_values(column, name)
    tensor = tf.convert_to_tensor(array)
    if dtype is None or tensor.dtype == dtype:
        return tensor
    if not tf.as_dtype(dtype).is_floating:
        check_no_nan(array, name, dtype)
    return tf.cast(tensor, dtype)


def to_tf_dataset(
    batches: Iterable[Mapping[str, Any]],
    schema: pa.Schema,
    feature_columns: str | list[str],
    label_columns: str | list[str],
    ragged: Mapping[str, int],
) -> Any:
    """A tf.data.Dataset of (features, labels). Every iteration over it iterates over `batches` anew.

    One name gives a tensor, a list of names a dict of tensors. Shapes and types come from the schema; a batch
    that does not fit it (integers that turn out to have nulls) is rejected by name. `ragged`: the columns whose
    rows differ in shape, with the number of dimensions of a row.
    """
    import tensorflow as tf

    names = listed_columns(feature_columns, label_columns)
    specs = {name: _spec(schema, name, ragged.get(name)) for name in names}

    def pairs() -> Iterator[tuple[Any, Any]]:
        for batch in batches:
            for name in names:
                _check_fits(batch[name], specs[name], name)
            yield _picked(batch, feature_columns), _picked(batch, label_columns)

    signature = (_picked(specs, feature_columns), _picked(specs, label_columns))
    return tf.data.Dataset.from_generator(pairs, output_signature=signature)


def _spec(schema: pa.Schema, name: str, rank: int | None) -> Any:
    import tensorflow as tf

    shape, dtype = tensor_signature(schema, name)
    if rank is None:
        return tf.TensorSpec(shape, dtype, name=name)
    return tf.RaggedTensorSpec((None,) * (rank + 1), tf.as_dtype(dtype), ragged_rank=rank)


def _check_fits(tensor: Any, spec: Any, name: str) -> None:
    import tensorflow as tf

    if tensor.dtype != spec.dtype:
        raise DataError(
            f"to_tf: column {name!r} has nulls in a batch, which {spec.dtype.name} cannot hold."
            " Fill them first (SimpleImputer, or map_batches)."
        )
    if isinstance(tensor, tf.RaggedTensor) and not isinstance(spec, tf.RaggedTensorSpec):
        raise DataError(
            f"to_tf: the rows of column {name!r} differ in length in a batch, unlike those of the first one."
            " Pad them to one length (map_batches)."
        )


def column_values(column: pa.Array, name: str) -> NDArray[Any]:
    """A column as an array that TensorFlow takes."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not _is_text(column.type):
        return numeric_array(column, name)
    if column.null_count:
        raise DataError(
            f"Column {name!r} ({column.type}) has nulls, which a string tensor cannot hold. Fill them first."
        )
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def tensor_signature(schema: pa.Schema, name: str) -> tuple[tuple[int | None, ...], Any]:
    """Shape and element type of the tensors that a column gives; None stands for lengths that are not fixed."""
    if name not in schema.names:
        raise ConfigError(f"There is no column {name!r}; the columns are {schema.names}.")
    data_type = schema.field(name).type
    shape: list[int | None] = [None]
    while True:
        if isinstance(data_type, pa.FixedShapeTensorType):
            order = data_type.permutation or range(len(data_type.shape))
            shape += [data_type.shape[axis] for axis in order]
            data_type = data_type.value_type
        elif pa.types.is_fixed_size_list(data_type):
            shape.append(data_type.list_size)
            data_type = data_type.value_type
        elif pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
            shape.append(None)
            data_type = data_type.value_type
        elif isinstance(data_type, RaggedTensorType):
            shape.append(None)  # and maybe more: their number is not in the type
            data_type = data_type.value_type
        elif pa.types.is_dictionary(data_type):
            data_type = data_type.value_type
        else:
            break
    if _is_text(data_type):
        return tuple(shape), "string"
    if pa.types.is_decimal(data_type):
        return tuple(shape), np.dtype(np.float64)
    try:
        dtype = np.dtype(data_type.to_pandas_dtype())
    except NotImplementedError:
        dtype = np.dtype(object)
    if dtype.kind not in "biuf":
        raise DataError(
            f"Column {name!r} ({schema.field(name).type}) does not fit into a tensor; leave it out or encode it."
        )
    return tuple(shape), dtype


def _is_text(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(data_type)
        or types.is_large_string(data_type)
        or types.is_binary(data_type)
        or types.is_large_binary(data_type)
    )


def listed_columns(*columns: str | list[str]) -> list[str]:
    """All names, given one by one or in lists."""
    return [name for each in columns for name in ([each] if isinstance(each, str) else each)]


def _picked(values: Mapping[str, Any], columns: str | list[str]) -> Any:
    return values[columns] if isinstance(columns, str) else {name: values[name] for name in columns}


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
