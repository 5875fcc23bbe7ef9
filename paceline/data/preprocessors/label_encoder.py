"""LabelEncoder: class labels as numbers, and numbers back as labels."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessor import D, Preprocessor
from paceline.data.preprocessors.categories import CategoryPreprocessor
from paceline.data.preprocessors.columns import column_of, with_columns
from paceline.data.statistics import Statistic
from paceline.data.statistics_values import ValueCounts


class LabelEncoder(CategoryPreprocessor):
    """Replaces each label by its place in the sorted labels: 0, 1, 2...

    Labels that were not there in fitting become null (NaN in numpy and pandas).
    """

    def __init__(self, label_column: str) -> None:
        if not isinstance(label_column, str):
            raise ConfigError(f"LabelEncoder: label_column is {label_column!r}: give the name of one column.")
        self.label_column = label_column

    def inverse_transform(self, ds: D) -> D:
        """The dataset with labels again instead of their numbers in the label column; lazily."""
        self._check_fitted("inverse_transform")
        return LabelDecoder(self.label_column, self._categories(self.label_column).values).transform(ds)

    def inverse_transform_batch(self, batch: Any) -> Any:
        """A single batch with labels again; the same kind comes out."""
        self._check_fitted("inverse_transform_batch")
        return LabelDecoder(self.label_column, self._categories(self.label_column).values).transform_batch(batch)

    def _statistics(self) -> list[Statistic]:
        return [ValueCounts(self.label_column)]

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        labels = column_of(chunk, self.label_column, "LabelEncoder")
        places = self._categories(self.label_column).places(labels)
        return with_columns(chunk, {self.label_column: places.cast(pa.int64())})

    def _input_columns(self) -> tuple[str, ...]:
        return (self.label_column,)

    def _output_columns(self) -> tuple[str, ...]:
        return (self.label_column,)


class LabelDecoder(Preprocessor):
    """The way back of a LabelEncoder."""

    _is_fittable = False

    def __init__(self, label_column: str, labels: list[Any]) -> None:
        self.label_column = label_column
        self.labels = labels

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        column = column_of(chunk, self.label_column, "LabelEncoder")
        what = f"LabelEncoder: column {self.label_column!r}"
        try:
            places = column.cast(pa.int64())
        except pa.ArrowException as error:
            raise DataError(f"{what} of type {column.type} does not hold numbers of labels: {error}") from error
        smallest, largest = pc.min_max(places).as_py().values()
        if smallest is not None and (smallest < 0 or largest >= len(self.labels)):
            raise DataError(
                f"{what} holds numbers from {smallest} to {largest}; only 0 to {len(self.labels) - 1} stand for labels."
            )
        return with_columns(chunk, {self.label_column: pa.array(self.labels).take(places)})

    def _input_columns(self) -> tuple[str, ...]:
        return (self.label_column,)

    def _output_columns(self) -> tuple[str, ...]:
        return (self.label_column,)
