"""What preprocessors of numeric columns share."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.errors import DataError
from paceline.data.preprocessor import Preprocessor
from paceline.data.preprocessors.columns import checked_columns, column_of, with_columns
from paceline.data.statistics_numeric import is_number_type


class NumericPreprocessor(Preprocessor):
    """Replaces each of its columns by something calculated from that column. Nulls stay null."""

    def __init__(self, columns: list[str]) -> None:
        self.columns = checked_columns(columns, type(self).__name__)

    def _input_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def _output_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        what = type(self).__name__
        replaced = {}
        for name in self.columns:
            numbers, missing = numbers_and_nulls(column_of(chunk, name, what), name, what)
            replaced[name] = self._transform_column(name, numbers, missing)
        return with_columns(chunk, replaced)

    def _transform_column(self, column: str, numbers: np.ndarray, missing: np.ndarray | None) -> pa.Array:
        return pa.array(self._transform_numbers(column, numbers), mask=missing)

    @abstractmethod
    def _transform_numbers(self, column: str, numbers: np.ndarray) -> np.ndarray:
        """The numbers of one column transformed, as a new array; the given one may be read-only."""


def numbers_and_nulls(values: pa.Array, column: str, what: str) -> tuple[np.ndarray, np.ndarray | None]:
    """A column as numpy, and which values are null (None: none is); there stands 1, which all functions take."""
    if not is_number_type(values.type):
        raise DataError(f"{what}: column {column!r} is of type {values.type}, but must hold numbers.")
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_decimal(values.type) or pa.types.is_null(values.type):
        values = values.cast(pa.float64())
    missing = None
    if values.null_count:
        missing = pc.is_null(values).to_numpy(zero_copy_only=False)
        values = values.fill_null(True if pa.types.is_boolean(values.type) else 1)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    return values.to_numpy(), missing


def as_float(numbers: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Calculated numbers in the precision of the column they come from; 64 bits if that has no fractions."""
    return numbers.astype(like.dtype, copy=False) if like.dtype.kind == "f" else numbers


def scaled(numbers: np.ndarray, center: float, scale: float) -> np.ndarray:
    """(numbers - center) / scale, calculated in 64 bits."""
    result: np.ndarray = np.subtract(numbers, center, dtype=np.float64)
    result /= scale
    return as_float(result, numbers)


def learnt(value: Any, statistic: str, column: str, what: str) -> Any:
    """A statistic that must be a number; says what is wrong with the column if it is not."""
    if value is None:
        raise DataError(
            f"{what}: column {column!r} has no values (all are missing, or there are no rows), so there is no "
            f"{statistic}."
        )
    if not math.isfinite(value):
        raise DataError(
            f"{what}: the {statistic} of column {column!r} is {value}: the column holds infinite values. Replace them, "
            "for example by Dataset.map_batches, before fitting."
        )
    return value
