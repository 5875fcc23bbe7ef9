"""Concatenator: several numeric columns become one column of vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.air.checks import check_bool, warn_at_users_line
from paceline.air.errors import ConfigError, DataError
from paceline.data.aggregate import is_number_type
from paceline.data.dataset_base import DatasetBase
from paceline.data.operations.native import no_such_column
from paceline.data.preprocessor import D, Preprocessor
from paceline.data.preprocessors.columns import checked_columns, numbers_and_nulls
from paceline.data.tensors import tensor_array, tensor_to_numpy


class Concatenator(Preprocessor):
    """Puts the numbers of several columns into one column, a vector per row, in the order of the dataset's columns.

    All columns are taken, or those in `include`, without those in `exclude`; they are removed. A tensor column
    contributes all of its elements. `dtype` is the type of the vectors' elements; by default the one that
    holds the values of all columns. Names that are not there lead to a warning, or to an error with `raise_if_missing`.
    """

    _is_fittable = False
    _told = False
    """The user has been told of names that are not there."""

    def __init__(
        self,
        output_column_name: str = "concat_out",
        include: str | list[str] | None = None,
        exclude: str | list[str] | None = None,
        dtype: Any = None,
        raise_if_missing: bool = False,
    ) -> None:
        if not isinstance(output_column_name, str) or not output_column_name:
            raise ConfigError(f"Concatenator: output_column_name is {output_column_name!r}: give a name.")
        check_bool(raise_if_missing, "Concatenator: raise_if_missing")
        self.output_column_name = output_column_name
        self.include = None if include is None else checked_columns(_listed(include), "Concatenator (include)")
        self.exclude = None if not exclude else checked_columns(_listed(exclude), "Concatenator (exclude)")
        self.dtype = None if dtype is None else _checked_dtype(dtype)
        self.raise_if_missing = raise_if_missing

    def transform(self, ds: D) -> D:
        """The dataset with the columns put together; lazily, when its rows are read."""
        schema = ds._known_schema() if isinstance(ds, DatasetBase) else None
        if schema is not None:
            self._check_names(schema.names)  # here, where the user's line is known
        return super().transform(ds)

    def _input_columns(self) -> tuple[str, ...] | None:
        return None if self.include is None else tuple(self.include)

    def _output_columns(self) -> tuple[str, ...] | None:
        return None if self.include is None else (*self.include, self.output_column_name)

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        taken = self._taken(chunk.schema.names)
        rest = [name for name in chunk.schema.names if name not in taken]
        if self.output_column_name in rest:
            raise DataError(
                f"Concatenator: there is a column {self.output_column_name!r} already. Choose another name."
            )
        vectors = tensor_array(self._joined(chunk, taken))
        return pa.record_batch([*(chunk.column(name) for name in rest), vectors], [*rest, self.output_column_name])

    def _taken(self, names: list[str]) -> list[str]:
        self._check_names(names)
        wanted = names if self.include is None else self.include
        taken = [name for name in names if name in wanted and name not in (self.exclude or ())]
        if not taken:
            raise DataError(f"Concatenator: none of the columns {names} is left to be put together.")
        return taken

    def _check_names(self, names: list[str]) -> None:
        absent = [name for name in (*(self.include or ()), *(self.exclude or ())) if name not in names]
        if absent and self.raise_if_missing:
            raise DataError(f"Concatenator: {no_such_column(absent[0], names)}")
        if absent and not self._told:
            self._told = True
            warn_at_users_line(
                f"Concatenator continues without {absent}: {no_such_column(absent[0], names)} "
                "raise_if_missing=True makes this an error."
            )

    def _joined(self, chunk: pa.RecordBatch, taken: list[str]) -> np.ndarray:
        """The vectors of all rows. Their type depends on the columns' types only: all chunks must have the same."""
        types = [_element_type(chunk.schema.field(name)) for name in taken]
        dtype = self.dtype if self.dtype is not None else np.result_type(*types)
        widths = [_width(chunk.schema.field(name).type) for name in taken]
        joined = np.empty((chunk.num_rows, sum(widths)), dtype)
        start = 0
        for name, width in zip(taken, widths, strict=True):
            joined[:, start : start + width] = _elements(chunk.column(name), name, joined.dtype)
            start += width
        return joined


def _listed(columns: Any) -> Any:
    return [columns] if isinstance(columns, str) else columns


def _checked_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        checked: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        checked = np.dtype(object)
    if checked.kind not in "biuf":
        raise ConfigError(f"Concatenator: dtype is {dtype!r}: give a numeric type of numpy, such as numpy.float32.")
    return checked


def _element_type(field: pa.Field) -> np.dtype[Any]:
    kind = field.type.value_type if isinstance(field.type, pa.FixedShapeTensorType) else field.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not is_number_type(kind):
        raise DataError(
            f"Concatenator: column {field.name!r} is of type {field.type}, but must hold numbers. Encode it before "
            "(OrdinalEncoder, OneHotEncoder), or put it into exclude."
        )
    if pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return np.dtype(np.float64)
    own: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return own


def _width(kind: pa.DataType) -> int:
    return math.prod(kind.shape) if isinstance(kind, pa.FixedShapeTensorType) else 1


def _elements(values: pa.Array, column: str, dtype: np.dtype[Any]) -> np.ndarray:
    """The numbers of a column as rows of a matrix, where null is NaN."""
    if values.null_count and dtype.kind != "f":
        raise DataError(
            f"Concatenator: column {column!r} has missing values, which {dtype} cannot hold. Fill them in before "
            "(SimpleImputer), or choose a floating point dtype."
        )
    if isinstance(values.type, pa.FixedShapeTensorType):
        return tensor_to_numpy(values, copy=False).reshape(len(values), -1)
    numbers, missing = numbers_and_nulls(values, column, "Concatenator")
    if missing is not None:
        numbers = np.where(missing, np.nan, numbers)
    return numbers[:, np.newaxis]
