"""Dataset's methods that look at rows beyond one block: order, parts, several datasets together, aggregates."""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from paceline.air.checks import check_bool, is_number, warn_at_users_line, whole_number
from paceline.air.errors import ConfigError
from paceline.air.words import counted
from paceline.data.dataset_base import DatasetBase
from paceline.data.operations.user_operation import check_resources

if TYPE_CHECKING:
    from paceline.data.aggregate import Aggregation, ColumnAggregation
    from paceline.data.grouped_data import GroupedData

R = TypeVar("R")


class Combining(DatasetBase):
    """Limit, splits, shuffles, sort, union, zip, join, groupby."""

    # -- order ----------------------------------------------------------------------------

    def random_shuffle(self, *, seed: int | None = None, num_blocks: int | None = None, **resources: Any) -> Self:
        """Every row at a random place; in training, at another one in each epoch.

        Takes one pass that stores all rows (beyond 64 MB in a temporary file). randomize_block_order()
        costs nothing. Without a seed one is drawn now: this dataset then always has the same order.
        """
        from paceline.data.sources.computed import KeptSource
        from paceline.data.sources.shuffled import RowShuffled

        check_resources("random_shuffle", resources)
        if num_blocks is not None:
            num_blocks = whole_number(num_blocks, "num_blocks", least=1)
        return self._of(RowShuffled(KeptSource(self.plan), _seed(seed), num_blocks))

    def randomize_block_order(self, *, seed: int | None = None) -> Self:
        """Blocks (row groups, parts of files) in a random order; in training, in another one in each epoch."""
        from paceline.data.sources.shuffled import BlockShuffled

        return self._of(BlockShuffled(self.plan, _seed(seed)))

    def sort(self, key: str | Sequence[str] | None = None, descending: bool | Sequence[bool] = False) -> Self:
        """Rows in the order of one or more columns: equal rows keep their order, nulls come last.

        A dataset of one column needs no key.
        """
        from paceline.data.sources.computed import SortedSource

        if key is None:
            key = self.plan.schema().names
            if len(key) != 1:
                raise ConfigError(f"sort: give the columns to sort by, key=...; the columns are {key}.")
        names = column_names(key, "sort: key")
        flags = [descending] * len(names) if isinstance(descending, bool) else list(descending)
        if len(flags) != len(names):
            raise ConfigError(
                f"sort: descending has {counted(len(flags), 'value')} for {counted(len(names), 'column')}: "
                "give one for each."
            )
        for flag in flags:
            check_bool(flag, "sort: descending")
        return self._of(SortedSource(self.plan, tuple(zip(names, flags, strict=True))))

    def repartition(self, num_blocks: int, *, shuffle: bool = False) -> Self:
        """The same rows in `num_blocks` blocks of equal size; with shuffle=True in a random order."""
        from paceline.data.sources.slices import RepartitionedSource

        num_blocks = whole_number(num_blocks, "num_blocks", least=1)
        if shuffle:
            return self.random_shuffle(num_blocks=num_blocks)
        return self._of(RepartitionedSource(self.plan, num_blocks))

    # -- parts ----------------------------------------------------------------------------

    def limit(self, limit: int) -> Self:
        """The first rows, no more than `limit`."""
        return self._rows(0, whole_number(limit, "limit", least=0))

    def split(self, n: int, *, equal: bool = False, locality_hints: Sequence[Any] | None = None) -> list[Self]:
        """`n` parts of consecutive rows whose sizes differ by one row at most.

        equal=True: all parts have the same size; the last rows, fewer than n, are left out.
        locality_hints: accepted from older code; workers read from storage, so there is nothing to place.
        """
        n = whole_number(n, "n", least=1)
        if locality_hints is not None and len(locality_hints) != n:
            raise ConfigError(f"split: locality_hints has {len(locality_hints)} entries for {n} parts.")
        rows = self._row_count()
        if equal and rows < n:
            raise ConfigError(
                f"split: equal=True would leave out all of the {rows} row(s), which are fewer than {n} parts."
            )
        if equal:
            sizes = [rows // n] * n
        else:
            sizes = [rows // n + (part < rows % n) for part in range(n)]
        return self._cut([0, *accumulate(sizes)])

    def split_at_indices(self, indices: Sequence[int]) -> list[Self]:
        """Parts that begin at row 0 and at each of these rows; parts beyond the end are empty."""
        cuts = [whole_number(index, "indices", least=0) for index in indices]
        if not cuts:
            raise ConfigError("split_at_indices: indices is empty: give the rows at which to cut.")
        if cuts != sorted(cuts):
            raise ConfigError(f"split_at_indices: {cuts} is not sorted.")
        rows = self._row_count()
        return self._cut([0, *(min(cut, rows) for cut in cuts), rows])

    def split_proportionately(self, proportions: Sequence[float]) -> list[Self]:
        """One part for each share of the rows, and a last one with the rest."""
        if not proportions or not all(is_number(share) and share > 0 for share in proportions):
            raise ConfigError(f"split_proportionately: {proportions!r} must be numbers above 0.")
        shares = [_exact(share) for share in proportions]
        if sum(shares) >= 1:
            raise ConfigError(
                f"split_proportionately: the shares add up to {float(sum(shares)):g}. They must stay below 1:"
                " what is left becomes the last part."
            )
        rows = self._row_count()
        cuts = [*(int(rows * share) for share in accumulate(shares)), rows]
        for part in reversed(range(len(shares))):  # a part without rows takes one from those before it
            cuts[part] = min(cuts[part], cuts[part + 1] - 1)
        if cuts[0] <= 0:
            raise ConfigError(
                f"split_proportionately: {counted(rows, 'row')} cannot make {counted(len(cuts), 'part')} of "
                f"{list(proportions)} and the rest: a part would be empty."
            )
        return self._cut([0, *cuts])

    def train_test_split(
        self, test_size: int | float, *, shuffle: bool = False, seed: int | None = None
    ) -> tuple[Self, Self]:
        """(train, test): the last rows become the test set, a share of all (float) or so many (int).

        shuffle=True shuffles first; the two sets then keep their rows in all epochs.
        """
        if seed is not None and not shuffle:
            warn_at_users_line("train_test_split: seed has no effect without shuffle=True; the last rows are taken.")
        rows = self._row_count()
        if isinstance(test_size, float):
            if not 0 < test_size < 1:
                raise ConfigError(f"test_size is {test_size}: give a share between 0 and 1, or a whole number of rows.")
            test_rows = math.ceil(rows * _exact(test_size))
        else:
            test_rows = whole_number(test_size, "test_size", least=1)
            if test_rows >= rows:
                raise ConfigError(
                    f"test_size is {test_rows}, and the dataset has {counted(rows, 'row')}: none would be left."
                )
        dataset = self.random_shuffle(seed=seed) if shuffle else self
        train, test = dataset._cut([0, rows - test_rows, rows])
        return train, test

    # -- several datasets -----------------------------------------------------------------

    def union(self, *others: Self) -> Self:
        """The rows of this dataset, then those of the others. All have the same columns."""
        from paceline.data.sources.slices import UnionSource

        for other in others:
            _check_dataset(other, "union")
        return self._of(UnionSource((self.plan, *(other.plan for other in others))))

    def zip(self, other: Self) -> Self:
        """The columns of both, row by row. A column whose name is taken gets _1 at its end."""
        from paceline.data.sources.joined import ZippedSource

        _check_dataset(other, "zip")
        return self._of(ZippedSource(self.plan, other.plan))

    def join(
        self,
        other: Self,
        *positional: Any,
        right_on: str | Sequence[str] | None = None,
        left_suffix: str | None = None,
        right_suffix: str | None = None,
        **named: Any,
    ) -> Self:
        """join(other, on, how="inner"): rows of both that agree in the columns `on`, in the order of this one's rows.

        how: "inner" (pairs only), "left" (all rows of this one), "right" or "outer" (all rows of both), or the rows of
        one side alone that have a partner ("left_semi", "right_semi") or have none ("left_anti", "right_anti"). Rows
        without a partner have nulls. right_on: the names of these columns in the other one. A column of the other one
        whose name is taken gets _1 at its end, or both get their suffixes. Ray's join(other, join_type,
        num_partitions, on) works too.
        """
        from paceline.data.sources.joined import JoinedSource, keys_and_kind

        _check_dataset(other, "join")
        on, how = keys_and_kind(positional, named)
        keys = column_names(on, "join: on")
        left, right = self._renamed_for_join(other, keys, right_on, (left_suffix, right_suffix))
        if how in ("right_semi", "right_anti"):
            left, right, how = right, left, how.replace("right", "left")
        return self._of(JoinedSource(left.plan, right.plan, tuple(keys), how))

    def _renamed_for_join(
        self, other: Self, keys: list[str], right_on: Any, suffixes: tuple[str | None, str | None]
    ) -> tuple[Self, Self]:
        from paceline.data.operations.native import RenameColumns
        from paceline.data.sources.joined import suffixed

        if right_on is not None:
            right_keys = column_names(right_on, "join: right_on")
            if len(right_keys) != len(keys):
                raise ConfigError(
                    f"join: on names {len(keys)} columns and right_on {len(right_keys)}: give equally many."
                )
            renamed = {old: new for old, new in zip(right_keys, keys, strict=True) if old != new}
            other = other._then(RenameColumns(renamed, checked=False))
        if suffixes == (None, None):
            return self, other
        names = suffixed(self.plan.schema().names, other.plan.schema().names, keys, suffixes)
        return self._then(RenameColumns(names[0], checked=True)), other._then(RenameColumns(names[1], checked=True))

    def groupby(self, key: str | Sequence[str] | None) -> GroupedData[Self]:
        """Groups of rows that agree in one or more columns; None: all rows as one group."""
        from paceline.data.grouped_data import GroupedData

        return GroupedData(self, tuple(column_names(key, "groupby: key")) if key is not None else ())

    # -- what it is made of ---------------------------------------------------------------

    def input_files(self) -> list[str]:
        """The files that the rows are read from; none for what was in memory, or has been materialized."""
        return self.plan.input_files()

    def num_blocks(self) -> int:
        """How many parts the rows come in."""
        return len(self.plan.blocks())

    def size_bytes(self) -> int | None:
        """About what all rows take in memory; None where only reading them would tell."""
        sizes = [block.size_bytes for block in self.plan.blocks()]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    def _row_count(self) -> int:
        return sum(self.plan.row_counts())

    def _rows(self, start: int, stop: int) -> Self:
        from paceline.data.sources.slices import sliced

        return self._of(sliced(self.plan, start, stop))

    def _cut(self, cuts: Sequence[int]) -> list[Self]:
        return [self._rows(start, stop) for start, stop in pairwise(cuts)]


def column_names(value: str | Sequence[str], what: str) -> list[str]:
    """One name or several, as a list."""
    names = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{what} is {value!r}: give the name of a column, or a list of names.")
    if len(set(names)) < len(names):
        raise ConfigError(f"{what} is {value!r}: a column is named twice.")
    return names


def _exact(share: float) -> Fraction:
    """The share as it is written: 0.29 of 100 rows are 29, while the product of floats lies below that."""
    return Fraction(str(float(share)))


def _seed(seed: int | None) -> int:
    return secrets.randbits(31) if seed is None else whole_number(seed, "seed", least=-(2**63), most=2**64 - 1)


def _check_dataset(value: object, method: str) -> None:
    if not isinstance(value, DatasetBase):
        raise ConfigError(f"{method} takes datasets of paceline.data, not {type(value).__name__}.")


class ColumnAggregates(ABC, Generic[R]):
    """Aggregates of one or more columns, or (`on` None) of all: values for all rows, a dataset for groups.

    Of groups, all columns are those beside the keys, and the results are the columns "sum(x)" and so on.
    """

    @abstractmethod
    def _each(self, on: str | Sequence[str] | None, make: Callable[[str], ColumnAggregation]) -> R:
        """What `make` gives for each column."""

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> R:
        """The sum; None if there are no values or, with ignore_nulls=False, if there are nulls."""
        from paceline.data.aggregate import Sum

        return self._each(on, lambda name: Sum(name, ignore_nulls))

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> R:
        """The smallest value."""
        from paceline.data.aggregate import Min

        return self._each(on, lambda name: Min(name, ignore_nulls))

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> R:
        """The largest value."""
        from paceline.data.aggregate import Max

        return self._each(on, lambda name: Max(name, ignore_nulls))

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> R:
        """The mean."""
        from paceline.data.aggregate import Mean

        return self._each(on, lambda name: Mean(name, ignore_nulls))

    def std(self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True) -> R:
        """The standard deviation; ddof=1 that of a sample. None for `ddof` values or fewer."""
        from paceline.data.aggregate import Std

        return self._each(on, lambda name: Std(name, ddof, ignore_nulls))


class Aggregates(DatasetBase, ColumnAggregates[Any]):
    """One column gives a value, several give a dict {"sum(x)": value}."""

    def count(self) -> int:
        """How many rows there are; files that say so are not read for it."""
        rows = sum(self.plan.row_counts())
        skipped = self.plan.skipped()
        if skipped:
            more = f" And {len(skipped) - 1} more, see stats()." if len(skipped) > 1 else ""
            warn_at_users_line(f"count: {counted(rows, 'row')} without what could not be read. {skipped[0]}{more}")
        return rows

    def aggregate(self, *aggregations: Aggregation) -> dict[str, Any]:
        """Several aggregations in one pass: {their name: value}."""
        from paceline.data.aggregation import Aggregator, with_columns_named

        named = with_columns_named(aggregations, self.plan.schema, ())
        (row,) = Aggregator((), named).run(self.plan).to_pylist()
        return dict(row)

    def unique(self, column: str) -> list[Any]:
        """The different values of a column, None among them if there are nulls, in the order of their appearance."""
        from paceline.data.aggregate import Unique

        (values,) = self.aggregate(Unique(column, ignore_nulls=False)).values()
        return list(values)

    def _each(self, on: str | Sequence[str] | None, make: Callable[[str], ColumnAggregation]) -> Any:
        names = self.plan.schema().names if on is None else [on] if isinstance(on, str) else on
        values = self.aggregate(*(make(name) for name in names))
        return values if len(values) != 1 else next(iter(values.values()))
