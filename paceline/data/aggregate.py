"""What can be computed over a group of rows: Count, Sum, Min, ..., or functions of the user's.

Everything is computed in three steps: rows are accumulated, what was accumulated of several blocks is merged, and the
result is made of that. There are two ways to do so. A `ColumnAggregation` works on all groups at once: its *parts* of
a chunk (say a sum and a number of values) come from Arrow's hash aggregation. An `Accumulated` has an object for each
group: functions of the user's, and what preprocessors want to know (`statistics.py`). `aggregation.py` runs both.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.absent import advise
from paceline.air.checks import is_number, whole_number
from paceline.air.errors import ConfigError, DataError
from paceline.data.formats import to_rows

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.store import Scratch

Offsets = npt.NDArray[np.int64]
"""Where each group begins in rows that are sorted by group, and where the last one ends."""
Part = tuple[str, str]
"""A function of Arrow's hash aggregation, and for counts which values count: "only_valid", "only_null" or "all"."""

VALID = "only_valid"
_LARGEST_PLAIN = 1 << 44
"""A chunk of integers up to this size cannot have a sum beyond 64 bits."""


class Aggregation(ABC):
    """Base of all. `name` becomes the column of the result."""

    name: str


class Accumulator(ABC):
    """What is known of the rows of one group that were seen so far. Used by one thread at a time."""

    @abstractmethod
    def add(self, values: Any) -> None:
        """Take in what `Accumulated.seen_in` gives for more rows; it must not be kept."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Take in what another accumulator of the same kind has seen; it is not used afterwards."""

    @abstractmethod
    def result(self) -> Any:
        """The value for all rows seen."""


class Accumulated(Aggregation):
    """An aggregation with an accumulator for each group."""

    @abstractmethod
    def start(self, key: Any, scratch: Scratch) -> Accumulator:
        """A new accumulator for the group of this key; `scratch` holds what is too much for memory."""

    @abstractmethod
    def seen_in(self, rows: Chunk) -> Any:
        """What an accumulator is given of these rows."""


class AggregateFn(Accumulated):
    """An aggregation made of functions of the user's.

    `init(key)` gives a new accumulator for a group (key: the group's value, a tuple for several columns, None
    without groups). `accumulate_row(accumulator, row)` or `accumulate_block(accumulator, table)` adds rows to it,
    `merge(accumulator, other)` another accumulator; all return the new one. `finalize(accumulator)` gives the result.
    """

    def __init__(
        self,
        init: Callable[[Any], Any],
        merge: Callable[[Any, Any], Any],
        accumulate_row: Callable[[Any, dict[str, Any]], Any] | None = None,
        accumulate_block: Callable[[Any, pa.Table], Any] | None = None,
        finalize: Callable[[Any], Any] | None = None,
        name: str | None = None,
    ) -> None:
        if (accumulate_row is None) == (accumulate_block is None):
            raise ConfigError("AggregateFn: give one of accumulate_row and accumulate_block.")
        if not isinstance(name, str) or not name:
            raise ConfigError("AggregateFn: give a name; it becomes the name of the result's column.")
        self.init = init
        self.merge = merge
        self.accumulate_row = accumulate_row
        self.accumulate_block = accumulate_block
        self.finalize = finalize
        self.name = name

    def start(self, key: Any, scratch: Scratch) -> Accumulator:
        return _UsersAccumulator(self, key)

    def seen_in(self, rows: Chunk) -> Chunk:
        return rows


class _UsersAccumulator(Accumulator):
    def __init__(self, functions: AggregateFn, key: Any) -> None:
        self._functions = functions
        self._value = functions.init(key)

    def add(self, values: Chunk) -> None:
        functions = self._functions
        try:
            if functions.accumulate_block is not None:
                self._value = functions.accumulate_block(self._value, pa.Table.from_batches([values]))
                return
            assert functions.accumulate_row is not None
            for row in to_rows(values):
                self._value = functions.accumulate_row(self._value, row)
        except Exception as error:
            raise DataError(f"aggregate({functions.name}) failed: {type(error).__name__}: {error}") from error

    def merge(self, other: Self) -> None:
        self._value = self._functions.merge(self._value, other._value)

    def result(self) -> Any:
        return self._functions.finalize(self._value) if self._functions.finalize else self._value


class ColumnAggregation(Aggregation):
    """Base of the built-in ones, each over one column. Without `on`: the only one there is beside the keys.

    ignore_nulls=False: a group in which the column has a null has the result null.
    """

    label: ClassVar[str]
    numbers_only: ClassVar[bool] = True
    in_floats: ClassVar[bool] = False
    """Computed in float64, whatever numbers the column has."""
    parts: tuple[Part, ...]
    merges: tuple[str, ...] = ()
    """The functions of Arrow that merge the parts; without them, `merge` does it."""

    def __init__(self, on: str | None = None, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        if on is not None and not isinstance(on, str):
            raise ConfigError(f"{type(self).__name__}: on is {on!r}; give the name of a column.")
        self.on = on
        self.ignore_nulls = ignore_nulls
        self.name = alias_name or f"{self.label}({on or ''})"

    @property
    def needs_column(self) -> bool:
        """True if it was not said which column it is over."""
        return self.on is None

    def over(self, columns: Sequence[str]) -> Self:
        """Itself, or, where no column was named, the same over the only one of `columns`."""
        if not self.needs_column:
            return self
        if len(columns) != 1:
            kind = type(self).__name__
            raise ConfigError(f"{kind}() does not say which column it is over: use {kind}(on=...), one of {columns}.")
        twin = copy.copy(self)
        twin.on = columns[0]
        twin.name = f"{self.label}({twin.on})" if self.name == f"{self.label}()" else self.name
        return twin

    def values(self, chunk: Chunk) -> pa.Array:
        """The column as `parts` are to see it."""
        column = chunk.column(self.on)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())
        self._check_type(column.type)
        if not self.in_floats:
            return column
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.uint8())
        return column.cast(pa.float64(), safe=False)  # integers beyond 2**53 are rounded

    def _check_type(self, kind: pa.DataType) -> None:
        is_plain = not pa.types.is_nested(kind) and not isinstance(kind, pa.BaseExtensionType)
        if not (is_plain and (not self.numbers_only or is_number_type(kind))):
            wanted = "numbers" if self.numbers_only else "plain values"
            raise DataError(
                f"{self.name}: column {self.on!r} holds {kind}, and {self.label} takes {wanted}."
                " Name the columns to aggregate (on=...), or convert it first."
            )

    def tidied(self, parts: list[pa.Array]) -> list[pa.Array]:
        """The parts of one chunk as they are merged."""
        return parts

    def merge(self, parts: list[pa.Array], offsets: Offsets) -> list[pa.Array]:
        """The merged parts of each group; rows of the given ones are sorted by group."""
        raise NotImplementedError

    def finish(self, parts: list[pa.Array]) -> pa.Array:
        """The result of each group."""
        return parts[0]


class Count(ColumnAggregation):
    """Rows; with `on` and ignore_nulls=True, those that have a value in that column."""

    label = "count"
    merges = ("sum",)

    def __init__(self, on: str | None = None, ignore_nulls: bool = False, alias_name: str | None = None) -> None:
        super().__init__(on, True, alias_name)
        self.parts = (("count", VALID if on and ignore_nulls else "all"),)

    @property
    def needs_column(self) -> bool:
        return False  # rows can be counted without one

    def values(self, chunk: Chunk) -> pa.Array:
        if self.on is None:
            return pa.array(np.zeros(chunk.num_rows, np.int8))
        return pc.if_else(chunk.column(self.on).is_null(), None, True)  # of any type

    def finish(self, parts: list[pa.Array]) -> pa.Array:
        return parts[0].fill_null(0)


class Sum(ColumnAggregation):
    label = "sum"
    parts = (("sum", VALID),)
    merges = ("sum",)

    def values(self, chunk: Chunk) -> pa.Array:
        column = super().values(chunk)
        if pa.types.is_boolean(column.type):
            return column.cast(pa.uint8())
        if pa.types.is_integer(column.type) and column.type.bit_width == 64:
            bounds = pc.min_max(column)
            low, high = bounds["min"].as_py(), bounds["max"].as_py()
            if low is not None and max(-low, high) > _LARGEST_PLAIN:
                return column.cast(pa.decimal128(20, 0))
        return column

    def tidied(self, parts: list[pa.Array]) -> list[pa.Array]:
        # Arrow's integers start again from below when a sum gets too large; decimals have room for any number of rows.
        if pa.types.is_integer(parts[0].type):
            return [parts[0].cast(pa.decimal128(20, 0)).cast(pa.decimal128(38, 0))]
        if pa.types.is_decimal(parts[0].type):
            return [parts[0].cast(pa.decimal128(38, parts[0].type.scale))]
        return parts

    def finish(self, parts: list[pa.Array]) -> pa.Array:
        if not pa.types.is_decimal(parts[0].type) or parts[0].type.scale:
            return parts[0]
        try:
            return parts[0].cast(pa.int64())
        except pa.ArrowInvalid:
            raise DataError(f"{self.name} goes beyond 64 bits: convert column {self.on!r} to float64 first.") from None


class Min(ColumnAggregation):
    label = "min"
    numbers_only = False
    parts = (("min", VALID),)
    merges = ("min",)


class Max(ColumnAggregation):
    label = "max"
    numbers_only = False
    parts = (("max", VALID),)
    merges = ("max",)


class AbsMax(ColumnAggregation):
    """The largest absolute value."""

    label = "abs_max"
    parts = (("max", VALID),)
    merges = ("max",)

    def values(self, chunk: Chunk) -> pa.Array:
        return pc.abs_checked(super().values(chunk))


class Mean(ColumnAggregation):
    label = "mean"
    in_floats = True
    parts = (("sum", VALID), ("count", VALID))
    merges = ("sum", "sum")

    def finish(self, parts: list[pa.Array]) -> pa.Array:
        return pc.divide(parts[0], parts[1].cast(pa.float64()))  # without values the sum is null


class Std(ColumnAggregation):
    """The standard deviation; ddof=1 that of a sample. Null for `ddof` values or fewer."""

    label = "std"
    in_floats = True
    parts = (("count", VALID), ("mean", VALID), ("variance", VALID))

    def __init__(
        self, on: str | None = None, ddof: int = 1, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        self.ddof = whole_number(ddof, "ddof", least=0)

    def tidied(self, parts: list[pa.Array]) -> list[pa.Array]:
        count, mean, variance = parts
        squares = pc.multiply(variance, count.cast(pa.float64()))
        return [count, mean.fill_null(0.0), squares.fill_null(0.0)]

    def merge(self, parts: list[pa.Array], offsets: Offsets) -> list[pa.Array]:
        """Squares around each part's mean become squares around the common one: nothing large is subtracted."""
        counts, means, squares = (part.to_numpy(zero_copy_only=False) for part in parts)
        starts = offsets[:-1]
        total = np.add.reduceat(counts, starts)
        with np.errstate(invalid="ignore"):  # a group of nulls: 0 / 0
            mean = np.add.reduceat(counts * means, starts) / np.maximum(total, 1)
            shift = means - np.repeat(mean, np.diff(offsets))
            around = np.add.reduceat(squares + counts * shift * shift, starts)
        return [pa.array(total), pa.array(mean), pa.array(around)]

    def finish(self, parts: list[pa.Array]) -> pa.Array:
        count, _, squares = parts
        enough = pc.greater(count, self.ddof)
        freedom = pc.if_else(enough, pc.subtract(count, self.ddof), None).cast(pa.float64())
        return pc.sqrt(pc.divide(squares, freedom))


class _OfLists(ColumnAggregation):
    """Collects values of each group as a list."""

    def tidied(self, parts: list[pa.Array]) -> list[pa.Array]:
        return [parts[0].cast(pa.large_list(parts[0].type.value_type))]


class Quantile(_OfLists):
    """The value below which a share `q` of the values lies, interpolated. Exact: holds all values in memory."""

    label = "quantile"
    in_floats = True
    parts = (("list", VALID),)

    def __init__(
        self, on: str | None = None, q: float = 0.5, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        if not is_number(q) or not 0 <= q <= 1:
            raise ConfigError(f"Quantile: q is {q!r}; give a number from 0 to 1.")
        self.q = q

    def merge(self, parts: list[pa.Array], offsets: Offsets) -> list[pa.Array]:
        return [_joined_lists(parts[0], offsets)]

    def finish(self, parts: list[pa.Array]) -> pa.Array:
        groups = (group.values.drop_null().to_numpy() for group in parts[0])
        return pa.array((float(np.quantile(some, self.q)) if len(some) else None for some in groups), pa.float64())


class Unique(_OfLists):
    """The different values, as a list; nulls among them with ignore_nulls=False."""

    label = "unique"
    numbers_only = False

    def __init__(self, on: str | None = None, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, True, alias_name)
        self.parts = (("distinct", VALID if ignore_nulls else "all"),)

    def merge(self, parts: list[pa.Array], offsets: Offsets) -> list[pa.Array]:
        joined = _joined_lists(parts[0], offsets)
        table = pa.table({"group": joined.value_parent_indices(), "value": joined.flatten()})
        pairs = table.group_by(["group", "value"], use_threads=False).aggregate([])
        order = pc.sort_indices(pairs.column("group"))  # stable: values stay in the order of their appearance
        groups = pairs.column("group").take(order).to_numpy()
        ends = np.searchsorted(groups, np.arange(len(joined) + 1))
        values = pairs.column("value").take(order).combine_chunks()
        return [pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), values)]


def is_number_type(kind: pa.DataType) -> bool:
    """True for what can be calculated with: integers, floats, decimals, truth values; null stands for any type."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
    return any(test(kind) for test in tests)


def _joined_lists(lists: pa.LargeListArray, offsets: Offsets) -> pa.LargeListArray:
    """The lists of each group, one after the other."""
    lengths = pc.list_value_length(lists).to_numpy()
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(pa.array(ends[offsets], pa.int64()), lists.flatten())


advise(__name__, {})  # misspelled names
