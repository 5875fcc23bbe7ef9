"""What user functions do to one portion of rows, in this process or in one of a pool."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import DataError
from paceline.air.words import counted
from paceline.data.column_arrays import column_array, kind_of
from paceline.data.formats import BatchFormat, conform, from_batch, from_rows, to_batch, to_numpy, to_rows, writable
from paceline.data.operations.gathering import Gathering

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.operations.user_function import Spot, UserFunction

CHUNK_BYTES = 16 << 20
"""Results of large rows are passed on in portions of about this size."""
QUICK_S = 0.002
"""A function that takes longer for a batch is not made quicker by joining its results, only later."""


class Work(ABC):
    """From one chunk to the chunks that it becomes. Picklable: it travels to the processes of a pool."""

    def __init__(self, function: UserFunction) -> None:
        self.function = function

    @abstractmethod
    def results(self, chunk: Chunk, spot: Spot) -> Iterator[Chunk]:
        """What becomes of one portion. Raises DataError that names the function and the spot."""

    def results_of_all(self, chunk: Chunk, size: int, spot: Spot) -> Iterator[Chunk]:
        """What becomes of a chunk that is treated in portions of `size` rows."""
        for portion, its_spot in portions(chunk, size, spot):
            yield from self.results(portion, its_spot)


def portions(chunk: Chunk, size: int, spot: Spot) -> Iterator[tuple[Chunk, Spot]]:
    for start in range(0, chunk.num_rows, size):
        portion = chunk.slice(start, size)
        yield portion, spot.part(start, portion.num_rows)


class BatchWork(Work):
    """map_batches: the function gets a batch and returns or yields batches."""

    def __init__(
        self, function: UserFunction, batch_format: BatchFormat, *, zero_copy: bool, keeps_row_count: bool
    ) -> None:
        super().__init__(function)
        self.batch_format = batch_format
        self.zero_copy = zero_copy
        self.keeps_row_count = keeps_row_count

    def results(self, chunk: Chunk, spot: Spot) -> Iterator[Chunk]:
        rows = 0
        copy = not (self.zero_copy or spot.fresh)
        for output in self._outputs(to_batch(chunk, self.batch_format, copy=copy, own=spot.fresh), spot):
            result = self._chunk(output, chunk.schema, spot)
            rows += result.num_rows
            yield result
        self._check_count(rows, spot)

    def results_of_all(self, chunk: Chunk, size: int, spot: Spot) -> Iterator[Chunk]:
        if self.batch_format not in ("default", "numpy") or chunk.num_rows <= size:
            return super().results_of_all(chunk, size, spot)
        return self._gathered_results(chunk, size, spot)

    def _gathered_results(self, chunk: Chunk, size: int, spot: Spot) -> Iterator[Chunk]:
        """The quick way: what is done per column and chunk is done once for many batches.

        What a function took its time for is passed on at once.
        """
        gathering = Gathering(chunk.num_rows)
        start = 0
        try:
            for batch in numpy_batches(chunk, size, copy=not (self.zero_copy or spot.fresh), own=spot.fresh):
                its_spot = spot.part(start, min(size, chunk.num_rows - start))
                start, rows = start + its_spot.rows, 0
                began = time.perf_counter()
                for output in self._outputs(batch, its_spot):
                    is_quick = time.perf_counter() - began < QUICK_S
                    taken = gathering.add(output) if is_quick else None
                    if taken is None:
                        yield from self._gathered(gathering, spot)
                        taken = gathering.add(output) if is_quick else None  # now there is room
                    if taken is None:
                        result = self._chunk(output, chunk.schema, its_spot)
                        taken = result.num_rows
                        yield result
                    rows += taken
                    began = time.perf_counter()
                self._check_count(rows, its_spot)
        except DataError:
            yield from self._gathered(gathering, spot)  # what came before the error
            raise
        yield from self._gathered(gathering, spot)

    def _gathered(self, gathering: Gathering, spot: Spot) -> Iterator[Chunk]:
        batch = gathering.take()
        if batch is not None:
            yield from_batch(batch, f"What {self.function} returned on {spot}")

    def _outputs(self, batch: Any, spot: Spot) -> Iterator[Any]:
        for output in self.function.outputs(batch, spot):
            if output is None:
                raise DataError(f"{self.function} returned None on {spot}. Does it lack a return statement?")
            yield output

    def _chunk(self, output: Any, schema: pa.Schema, spot: Spot) -> Chunk:
        result = from_batch(output, f"What {self.function} returned on {spot}")
        if not result.num_columns:
            raise DataError(f"{self.function} returned a batch without columns on {spot}.")
        return with_types_of(result, schema)

    def _check_count(self, rows: int, spot: Spot) -> None:
        if self.keeps_row_count and rows != spot.rows:
            raise DataError(
                f"{self.function} made {counted(rows, 'row')} of {spot.rows} on {spot}, but keeps_row_count=True says "
                f"that it makes as many rows as it gets. Leave that out."
            )


class RowWork(Work):
    """map: the function gets a row and returns a row."""

    def results(self, chunk: Chunk, spot: Spot) -> Iterator[Chunk]:
        function, call, args, kwargs = self.function, self.function.ready(), self.function.args, self.function.kwargs
        rows: list[Mapping[str, Any]] = []
        for index, row in enumerate(to_rows(chunk)):
            try:
                output = call(row, *args, **kwargs)
            except Exception as error:
                raise function.failure(error, spot.row(index), row) from error
            if not isinstance(output, Mapping):
                raise _not_a_row(function, output, spot.row(index))
            rows.append(output)
            if len(rows) >= most_rows(rows[0]):
                yield self._chunk(rows, chunk.schema, spot)
                rows = []
        if rows:
            yield self._chunk(rows, chunk.schema, spot)

    def _chunk(self, rows: list[Mapping[str, Any]], schema: pa.Schema, spot: Spot) -> Chunk:
        result = from_rows(rows, f"What {self.function} returned on {spot}", same_columns=True)
        if not result.num_columns:
            raise DataError(f"{self.function} returned rows without columns on {spot}.")
        return with_types_of(result, schema)


class FlatMapWork(Work):
    """flat_map: the function gets a row and returns or yields any number of rows."""

    def results(self, chunk: Chunk, spot: Spot) -> Iterator[Chunk]:
        function, call, args, kwargs = self.function, self.function.ready(), self.function.args, self.function.kwargs
        what = f"What {function} returned on {spot}"
        most = max(chunk.num_rows, 1024)
        rows: list[Mapping[str, Any]] = []
        for index, row in enumerate(to_rows(chunk)):
            try:
                output = call(row, *args, **kwargs)
                made = list(output) if _is_several(output) else None
            except Exception as error:
                raise function.failure(error, spot.row(index), row) from error
            if made is None:
                raise DataError(
                    f"{function} returned {_shown(output)} on {spot.row(index)}: return a list of rows or yield rows; "
                    f"an empty list leaves the row out."
                )
            for each in made:
                if not isinstance(each, Mapping):
                    raise _not_a_row(function, each, spot.row(index))
            rows += made
            if rows and len(rows) >= min(most, most_rows(rows[0])):
                yield with_types_of(from_rows(rows, what, same_columns=True), chunk.schema)
                rows = []
        if rows:
            yield with_types_of(from_rows(rows, what, same_columns=True), chunk.schema)


class FilterWork(Work):
    """filter: the function gets a row and says whether it stays. The columns stay as they are."""

    def results(self, chunk: Chunk, spot: Spot) -> Iterator[Chunk]:
        function, call, args, kwargs = self.function, self.function.ready(), self.function.args, self.function.kwargs
        kept: list[bool] = []
        answered = False
        for index, row in enumerate(to_rows(chunk)):
            try:
                output = call(row, *args, **kwargs)
            except Exception as error:
                raise function.failure(error, spot.row(index), row) from error
            kept.append(output if isinstance(output, bool) else self._as_bool(output, spot.row(index)))
            answered = answered or output is not None
        if not answered:  # a None may come from the row; for all rows it is more likely a slip
            warn_at_users_line(f"{function} returned None for every row. Does it lack a return statement?")
        yield chunk.filter(pa.array(kept, pa.bool_()))

    def _as_bool(self, output: Any, spot: Spot) -> bool:
        """Whatever is true to Python keeps the row."""
        try:
            return bool(output)
        except Exception as error:  # an array of several values, say
            raise DataError(f"{self.function} returned {kind_of(output)} on {spot}: return True or False.") from error


class ColumnWork(Work):
    """add_column: the function gets a pandas frame and returns the values of one column."""

    def __init__(self, function: UserFunction, name: str) -> None:
        super().__init__(function)
        self.name = name

    def results(self, chunk: Chunk, spot: Spot) -> Iterator[Chunk]:
        what = f"What {self.function} returned on {spot}"
        for values in self.function.outputs(to_batch(chunk, "pandas", copy=True), spot):
            column = column_array(self._one_per_row(values, chunk.num_rows), self.name, what)
            if len(column) != chunk.num_rows:
                raise DataError(f"{what}: {len(column)} values for {chunk.num_rows} rows of column {self.name!r}.")
            names, columns = list(chunk.schema.names), list(chunk.columns)
            if self.name in names:
                columns[names.index(self.name)] = column
            else:
                names, columns = [*names, self.name], [*columns, column]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    @staticmethod
    def _one_per_row(values: Any, rows: int) -> Any:
        """A single value stands for all rows, as in an assignment to a column of a frame."""
        return [values] * rows if isinstance(values, (str, bytes, bool, int, float, np.generic)) else values


def numpy_batches(chunk: Chunk, size: int, *, copy: bool, own: bool = False) -> Iterator[dict[str, Any]]:
    """A chunk in batches of `size` rows, each a dict of arrays; `copy` and `own` as in `to_batch`.

    Columns of plain values are converted once for all batches: for small batches that is most of the work.
    """
    names, columns = chunk.schema.names, chunk.columns
    whole = [
        to_numpy(column, copy=False) if pa.types.is_primitive(column.type) and not column.null_count else None
        for column in columns
    ]
    if own and not copy:
        whole = [values if values is None or values.flags.writeable else writable(values) for values in whole]
    for start in range(0, chunk.num_rows, size):
        batch: dict[str, Any] = {}
        for name, column, values in zip(names, columns, whole, strict=True):
            if values is None:
                batch[name] = to_numpy(column.slice(start, size), copy=copy)
            else:
                part = values[start : start + size]
                batch[name] = part.copy() if copy else part
        yield batch


def most_rows(row: Mapping[str, Any]) -> int:
    """How many rows like this one make a chunk: a decoded image takes as much memory as thousands of plain rows."""
    return max(1, CHUNK_BYTES // max(1, sum(map(_size_of, row.values()))))


def _size_of(value: Any) -> int:
    size = getattr(value, "nbytes", None)
    if size is not None:
        return int(size)
    return len(value) if isinstance(value, (str, bytes, list)) else 8


def _is_several(output: Any) -> bool:
    return isinstance(output, Iterable) and not isinstance(output, (Mapping, str, bytes))


def _not_a_row(function: UserFunction, output: Any, spot: Spot) -> DataError:
    return DataError(f"{function} returned {_shown(output)} on {spot}: return a dict of column names to values.")


def _shown(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def with_types_of(result: Chunk, schema: pa.Schema) -> Chunk:
    """Where the type of a column cannot be seen (no value, or nulls only), it has the one of the input."""
    unseen = {field.name for field in result.schema if pa.types.is_null(field.type)}.intersection(schema.names)
    if not unseen:
        return result
    columns = [
        pa.nulls(result.num_rows, schema.field(name).type) if name in unseen else column
        for name, column in zip(result.schema.names, result.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=result.schema.names)


def like_before(result: Chunk, schema: pa.Schema, what: str) -> Chunk:
    """A result with the schema that earlier ones had.

    Numpy and pandas have no whole numbers beside nulls: floats that are whole numbers or missing become again what
    they were in batches without nulls.
    """
    if result.schema == schema:
        return result
    wanted = dict(zip(schema.names, schema.types, strict=True))
    columns = [
        _whole_numbers(column, wanted[name])
        if pa.types.is_floating(column.type) and pa.types.is_integer(wanted.get(name, column.type))
        else column
        for name, column in zip(result.schema.names, result.columns, strict=True)
    ]
    return conform(pa.RecordBatch.from_arrays(columns, names=result.schema.names), schema, what)


def _whole_numbers(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    present = pc.if_else(pc.is_nan(column), None, column)
    if not present.null_count:
        return column
    try:
        return present.cast(wanted)
    except pa.ArrowInvalid:  # there are fractions
        return column
