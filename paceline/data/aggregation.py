"""One pass over a plan that aggregates: each block by itself on all cores, then all blocks merged in their order.

So results do not depend on timing, and memory goes with the number of groups, not of rows. What is known of the
groups is in two objects that have the same methods: `ColumnParts`, a table with a row per group, and `Accumulators`,
objects of each group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import pyarrow as pa

from paceline.air.errors import ConfigError, DataError
from paceline.data.aggregate import Accumulated, Accumulator, Aggregation, ColumnAggregation
from paceline.data.column_arrays import column_array
from paceline.data.column_parts import ColumnParts, group_rows, inner_names, keys_of
from paceline.data.execution import map_blocks
from paceline.data.operations.columns import no_such_column
from paceline.data.scratch import Scratch
from paceline.data.sources.computed import sort_order

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.plan import Plan

Key = tuple[Any, ...]
"""The values of a group in the columns that rows are grouped by."""


class Accumulating(Protocol):
    """What a pass makes of rows."""

    def add(self, chunk: Chunk) -> None:
        """Take in more rows of a block."""

    def settle(self) -> None:
        """The block is over: do now, in its thread, what would hold up merging."""

    def merge(self, other: Self) -> None:
        """Take in what was made of another block, which is not used afterwards."""


A = TypeVar("A", bound=Accumulating)


def accumulated(plan: Plan, start: Callable[[], A], columns: tuple[str, ...] | None) -> A:
    """What `start` gives, after all rows; only these columns are read (None: all)."""

    def of_block(_: int, chunks: Iterator[Chunk]) -> A:
        block = start()
        for chunk in chunks:
            block.add(chunk)
        block.settle()
        return block

    total = start()
    for block in map_blocks(plan, of_block, columns=columns):
        total.merge(block)
    return total


class Accumulators:
    """The accumulators of each group."""

    def __init__(self, keys: Sequence[str], aggregations: Sequence[Accumulated], scratch: Scratch) -> None:
        self._keys = list(keys)
        self._all = aggregations
        self._scratch = scratch
        self._groups: dict[Key, list[Accumulator]] = {}

    def add(self, chunk: Chunk) -> None:
        for key, rows in _groups(chunk, self._keys) if self._all else ():
            for aggregation, accumulator in zip(self._all, self._of(key), strict=True):
                accumulator.add(aggregation.seen_in(rows))

    def settle(self) -> None:
        """There is nothing to do."""

    def merge(self, other: Self) -> None:
        for key, accumulators in other._groups.items():
            known = self._groups.get(key)
            if known is None:
                self._groups[key] = accumulators
                continue
            for accumulator, more in zip(known, accumulators, strict=True):
                accumulator.merge(more)

    def results(self, key: Key) -> list[Any]:
        """Of each aggregation, for one group."""
        return [accumulator.result() for accumulator in self._of(key)]

    def _of(self, key: Key) -> list[Accumulator]:
        if key not in self._groups:
            shown = None if not key else key[0] if len(key) == 1 else key
            self._groups[key] = [aggregation.start(shown, self._scratch) for aggregation in self._all]
        return self._groups[key]


class Aggregator:
    """Computes `aggregations` for the groups that agree in the columns `keys`; without keys all rows are one group."""

    def __init__(self, keys: tuple[str, ...], aggregations: Sequence[Aggregation]) -> None:
        for aggregation in aggregations:
            if not isinstance(aggregation, Aggregation):
                raise ConfigError(
                    f"aggregate takes Sum(...), Mean(...), AggregateFn(...) and the like, not {aggregation!r}."
                )
        names = [*keys, *(aggregation.name for aggregation in aggregations)]
        if len(set(names)) < len(names):
            raise ConfigError(f"the result would have two columns of one name among {names}: use alias_name.")
        self._keys = list(keys)
        self._all = list(aggregations)
        self._native = [each for each in aggregations if isinstance(each, ColumnAggregation)]
        self._accumulated = [each for each in aggregations if isinstance(each, Accumulated)]

    def run(self, plan: Plan) -> pa.Table:
        """One row per group, sorted by key, with the keys and the results."""
        schema = plan.schema()
        columns = self._columns(schema)
        with Scratch() as scratch:
            groups = accumulated(plan, lambda: self._groups(schema, scratch), columns)
            return self._result(groups)

    def schema(self, schema: pa.Schema) -> pa.Schema | None:
        """That of the result, for rows of this schema; None if functions of the user's decide."""
        if self._accumulated:
            return None
        self._columns(schema)
        with Scratch() as scratch:
            return self._result(self._groups(schema, scratch)).schema

    def _groups(self, schema: pa.Schema, scratch: Scratch) -> _Groups:
        return _Groups(
            ColumnParts(self._keys, self._native, schema), Accumulators(self._keys, self._accumulated, scratch)
        )

    def _columns(self, schema: pa.Schema) -> tuple[str, ...] | None:
        """What has to be read."""
        wanted = [*self._keys, *(each.on for each in self._native if each.on is not None)]
        known = set(schema.names)
        for name in wanted:
            if name not in known:
                what = "groupby" if name in self._keys else next(each.name for each in self._native if each.on == name)
                raise DataError(f"{what}: {no_such_column(name, schema.names)}")
        if self._accumulated or not wanted:
            return None  # a function of the user's may look at any column; and rows without columns cannot be counted
        return tuple(dict.fromkeys(wanted))

    def _result(self, groups: _Groups) -> pa.Table:
        keys = groups.parts.keys()
        results: dict[str, Any] = dict(zip(self._keys, keys.columns, strict=True))
        values = [groups.accumulators.results(key) for key in _key_tuples(keys)] if self._accumulated else []
        for each in self._all:
            if isinstance(each, ColumnAggregation):
                results[each.name] = groups.parts.finished(self._native.index(each))
            elif isinstance(each, Accumulated):
                place = self._accumulated.index(each)
                column = [of_group[place] for of_group in values]
                results[each.name] = column_array(column, each.name, f"aggregate({each.name})")
        result = pa.table(results)
        if not self._keys:
            return result
        return result.take(pa.array(sort_order(result, tuple((key, False) for key in self._keys), "groupby")))


class _Groups:
    """What is known of the groups in some of the rows."""

    def __init__(self, parts: ColumnParts, accumulators: Accumulators) -> None:
        self.parts = parts
        self.accumulators = accumulators

    def add(self, chunk: Chunk) -> None:
        if chunk.num_rows:
            self.parts.add(chunk)
            self.accumulators.add(chunk)

    def settle(self) -> None:
        self.parts.settle()

    def merge(self, other: Self) -> None:
        self.parts.merge(other.parts)
        self.accumulators.merge(other.accumulators)


def with_columns_named(
    aggregations: Sequence[Aggregation], schema: Callable[[], pa.Schema], keys: Sequence[str]
) -> list[Aggregation]:
    """The aggregations, those that name no column over the only one that is not a key."""
    if not any(isinstance(each, ColumnAggregation) and each.needs_column for each in aggregations):
        return list(aggregations)  # the schema is not needed
    columns = [name for name in schema().names if name not in keys]
    return [each.over(columns) if isinstance(each, ColumnAggregation) else each for each in aggregations]


def _groups(chunk: Chunk, keys: list[str]) -> Iterator[tuple[Key, Chunk]]:
    """The rows of each group of a chunk."""
    if not keys:
        yield (), chunk
        return
    order, offsets, found = group_rows(pa.table(keys_of(chunk, keys)), inner_names(keys))
    rows = chunk.take(order)
    for key, (start, stop) in zip(_key_tuples(found), pairwise(offsets), strict=True):
        yield key, rows.slice(int(start), int(stop - start))


def _key_tuples(keys: pa.Table) -> list[Key]:
    if not keys.num_columns:
        return [()]
    columns = [column.to_pylist() for column in keys.columns]
    # math.nan is one object, and therefore found again in a dict.
    return [tuple(math.nan if cell != cell else cell for cell in row) for row in zip(*columns, strict=True)]
