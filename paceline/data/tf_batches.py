"""Chunks to dicts of TensorFlow tensors, and whole datasets to tf.data.

As for torch: integers with nulls become floats with NaN, decimals float64, lists of one length a matrix. Lists of
several lengths become ragged tensors, strings and bytes string tensors; times are rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import ConfigError, DataError
from paceline.data.numeric_columns import check_no_nan, dtypes_by_column, numeric_array
from paceline.data.tensors import RaggedTensorType
from paceline.data.tf_ragged import is_uneven, ragged_tensor

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
