"""Columns as arrays that a tensor library takes, and why a column is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import ConfigError, DataError
from paceline.data.formats import numbers_inside, to_numpy
from paceline.data.uneven import VALID_COLUMN

if TYPE_CHECKING:
    from numpy.typing import NDArray


def numeric_array(column: pa.Array, name: str) -> NDArray[Any]:
    """Numbers or booleans; integers with nulls as floats with NaN, decimals as float64. Not copied where possible."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    array = to_numpy(column, copy=False)
    if array.dtype.kind not in "biuf":
        raise DataError(_refusal(column, name, array))
    return array


def check_no_nan(array: NDArray[Any], name: str, dtype: object) -> None:
    """Before floats are turned into something that has no NaN, which would silently make numbers of them."""
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise DataError(
            f"Column {name!r} has nulls or NaN, which {dtype} cannot hold."
            " Fill them first (SimpleImputer, or map_batches), or ask for a floating type."
        )


def dtypes_by_column(names: list[str], dtypes: Any) -> Mapping[str, Any]:
    """The type that is wanted for each column, where one is."""
    if dtypes is None:
        return {}
    if not isinstance(dtypes, Mapping):
        return {name: dtypes for name in names if name != VALID_COLUMN}
    for name in dtypes:
        if name not in names:
            raise ConfigError(f"dtypes names a column {name!r} that is not there; the columns are {names}.")
    return dtypes


def _refusal(column: pa.Array, name: str, array: NDArray[Any]) -> str:
    if pa.types.is_boolean(column.type):
        problem, remedy = "has nulls, and booleans have no NaN", "Fill them (map_batches)"
    elif numbers_inside(column.type):
        problem, remedy = "has rows of different shapes, or nulls", "Pad or cut them to one shape (map_batches)"
    elif array.dtype.kind in "mM":
        problem, remedy = "holds times", "Turn them into numbers (map_batches)"
    else:
        problem = "holds values that are no numbers"
        remedy = "Encode them (OrdinalEncoder, OneHotEncoder, Tokenizer, or map_batches)"
    return (
        f"Column {name!r} ({column.type}) does not fit into a tensor: it {problem}. {remedy}, leave the column out"
        " (drop_columns), or make tensors yourself in collate_fn=."
    )
