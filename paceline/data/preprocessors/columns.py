"""What built-in preprocessors share: checking columns, learning from each, replacing them, numbers with gaps."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.errors import ConfigError, DataError
from paceline.data.aggregate import is_number_type
from paceline.data.preprocessor import Preprocessor
from paceline.data.statistics import Statistic


def checked_columns(columns: Any, what: str) -> list[str]:
    """The names of columns as a list of their own; each once, at least one."""
    if isinstance(columns, str) or not isinstance(columns, list | tuple):
        raise ConfigError(f"{what}: columns is {columns!r}: give a list of names, such as ['x', 'y'].")
    wrong = [name for name in columns if not isinstance(name, str)]
    if wrong or not columns:
        raise ConfigError(f"{what}: columns is {columns!r}: give the names of one or more columns.")
    if len(set(columns)) < len(columns):
        raise ConfigError(f"{what}: columns is {columns!r}: a name occurs more than once.")
    return list(columns)


def column_of(chunk: pa.RecordBatch, name: str, what: str) -> pa.Array:
    """A column of a chunk; `what` is the preprocessor that needs it."""
    index = chunk.schema.get_field_index(name)
    if index < 0:
        raise DataError(f"{what}: there is no column {name!r}; the columns are {chunk.schema.names}.")
    return chunk.column(index)


def with_columns(chunk: pa.RecordBatch, replaced: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """The chunk with these columns instead of those of the same name; new ones come last."""
    columns = dict(zip(chunk.schema.names, chunk.columns, strict=True))
    columns.update(replaced)
    return pa.record_batch(list(columns.values()), list(columns))


def check_unique(names: Sequence[str], what: str) -> None:
    """Refuse columns that would have the same name."""
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise DataError(
            f"{what} would make {times} columns named {name!r}. Rename a column before it, to tell them apart."
        )


def counts_per_row(rows: int, row: np.ndarray, place: np.ndarray, places: int) -> list[pa.Array]:
    """How often each of so many places occurs in each of so many rows: one column per place.

    `row` and `place` have one entry for each occurrence.
    """
    table = np.bincount(place * rows + row, minlength=places * rows).reshape(places, rows)
    return [pa.array(column) for column in table]


def place_numbers(places: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The entries that have a place, and the place of each."""
    numbers = places.fill_null(-1).to_numpy()
    (present,) = np.nonzero(numbers >= 0)
    return present, numbers[present].astype(np.int64)


class ColumnPreprocessor(Preprocessor):
    """Replaces each of its columns by something made of that column, for which it may learn a statistic of each."""

    _kind_of_statistic: ClassVar[type[Statistic]]

    def __init__(self, columns: list[str]) -> None:
        self.columns = checked_columns(columns, type(self).__name__)

    def _input_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def _output_columns(self) -> tuple[str, ...]:
        return tuple(self.columns)

    # -- fitting --------------------------------------------------------------------------

    def _statistic(self, column: str) -> Statistic:
        """What must be known of one column."""
        return self._kind_of_statistic(column)

    def _learnt(self, column: str, found: Any) -> dict[str, Any]:
        """What `stats_` has of one column, of which this was found."""
        raise NotImplementedError

    def _check_learnt(self, learnt: dict[str, Any]) -> None:
        """Refuse what cannot be used, before it replaces what was learnt earlier."""

    def _statistics(self) -> list[Statistic]:
        return [self._statistic(column) for column in self.columns]

    def _learn(self, values: dict[Statistic, Any]) -> None:
        learnt: dict[str, Any] = {}
        for column in self.columns:
            learnt.update(self._learnt(column, values[self._statistic(column)]))
        self._check_learnt(learnt)
        self.stats_ = learnt

    # -- transforming ---------------------------------------------------------------------

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        return with_columns(
            chunk, {column: self._transform_column(column, self._of(chunk, column)) for column in self.columns}
        )

    def _transform_column(self, column: str, values: pa.Array) -> pa.Array:
        """One column after the preprocessor."""
        raise NotImplementedError

    def _of(self, chunk: pa.RecordBatch, column: str) -> pa.Array:
        return column_of(chunk, column, type(self).__name__)


class ExpandingPreprocessor(ColumnPreprocessor):
    """Replaces its columns by others, which come last."""

    @abstractmethod
    def _new_names(self, learnt: dict[str, Any]) -> list[str]:
        """The names of the new columns; `learnt` is `stats_`, or empty before that is there."""

    def _new_columns(self, chunk: pa.RecordBatch) -> list[pa.Array]:
        return [made for column in self.columns for made in self._expanded(column, self._of(chunk, column))]

    def _expanded(self, column: str, values: pa.Array) -> list[pa.Array]:
        """The new columns that one column becomes."""
        raise NotImplementedError

    def _output_columns(self) -> tuple[str, ...]:
        return (*self.columns, *self._new_names(getattr(self, "stats_", {})))

    def _check_learnt(self, learnt: dict[str, Any]) -> None:
        check_unique(self._new_names(learnt), type(self).__name__)

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        names = self._new_names(getattr(self, "stats_", {}))
        made = self._new_columns(chunk)
        kept = [name for name in chunk.schema.names if name not in self.columns]
        for name in set(kept).intersection(names):
            raise DataError(
                f"{type(self).__name__} makes a column {name!r}, but there is one of this name already. Rename one of "
                "the two columns."
            )
        return pa.record_batch([*(chunk.column(name) for name in kept), *made], [*kept, *names])


class NumericPreprocessor(ColumnPreprocessor):
    """Replaces each of its columns by something calculated from that column. Nulls stay null."""

    def _transform_column(self, column: str, values: pa.Array) -> pa.Array:
        numbers, missing = numbers_and_nulls(values, column, type(self).__name__)
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


def learnt_range(found: tuple[Any, Any] | None, column: str, what: str) -> tuple[Any, Any]:
    """The smallest and the largest value of a column."""
    low, high = found or (None, None)
    return learnt(low, "minimum", column, what), learnt(high, "maximum", column, what)
