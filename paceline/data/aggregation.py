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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.errors import ConfigError, DataError
from paceline.data.aggregate import VALID, Accumulated, Accumulator, Aggregation, ColumnAggregation, Offsets
from paceline.data.column_arrays import column_array
from paceline.data.execution import map_blocks
from paceline.data.operations.native import no_such_column
from paceline.data.sources.computed import sort_order, sortable
from paceline.data.store import Scratch

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.plan import Plan

ROWS_TO_MERGE_AT = 1 << 18
_ROW = "row"
Function = tuple[str, str, str]
"""A column, what to compute of it, which values count."""


class ColumnParts:
    """The parts of column aggregations: tables with a row per group, which are merged to one of the same kind."""

    def __init__(self, keys: list[str], aggregations: list[ColumnAggregation], schema: pa.Schema) -> None:
        self._keys = keys
        self._inner = inner_names(keys)
        self._all = aggregations
        self._schema = schema
        self._held: list[pa.Table] = []

    def add(self, chunk: Chunk) -> None:
        self._hold(self._of_chunk(chunk))

    def merge(self, other: Self) -> None:
        for table in other._held:
            self._hold(table)

    def settle(self) -> None:
        """Merge what is held to one table."""
        if len(self._held) > 1:
            self._held = [self._merged()]

    def keys(self) -> pa.Table:
        """The keys of all groups."""
        return self._table().select(self._inner)

    def finished(self, i: int) -> pa.Array:
        """The results of one aggregation, for each group."""
        table, aggregation = self._table(), self._all[i]
        result = aggregation.finish([_array(table.column(f"{i}.{j}")) for j in range(len(aggregation.parts))])
        if aggregation.ignore_nulls:
            return result
        nulls = _array(table.column(f"{i}.{len(aggregation.parts)}"))
        return pc.if_else(pc.greater(nulls, 0), None, result)

    def _table(self) -> pa.Table:
        self.settle()
        return self._held[0] if self._held else self._of_chunk(pa.RecordBatch.from_pylist([], self._schema))

    def _hold(self, table: pa.Table) -> None:
        """Merged in portions, so that no more than a few tables are held."""
        self._held.append(table)
        if sum(len(held) for held in self._held[1:]) > max(ROWS_TO_MERGE_AT, len(self._held[0])):
            self.settle()

    def _of_chunk(self, chunk: Chunk) -> pa.Table:
        columns = keys_of(chunk, self._keys)
        columns[_ROW] = pa.array(np.zeros(chunk.num_rows, np.int8))
        functions: list[Function] = [(_ROW, "count", VALID)]
        for i, each in enumerate(self._all):
            columns[f"{i}"] = each.values(chunk)
            functions += [(f"{i}", *part) for part in each.parts]
            if not each.ignore_nulls:
                functions.append((f"{i}", "count", "only_null"))
        try:
            found = _aggregated(pa.table(columns), self._inner, functions)
        except pa.ArrowNotImplementedError as error:
            all_names = ", ".join([*self._keys, *(each.name for each in self._all)])
            raise DataError(f"aggregate({all_names}): {error}. Convert the column to another type first.") from error
        names = [*self._inner, _ROW]
        tidied: dict[str, Any] = dict(zip(names, found.columns, strict=False))
        parts = iter(found.columns[len(names) :])
        for i, each in enumerate(self._all):
            own = each.tidied([_array(next(parts)) for _ in each.parts])
            if not each.ignore_nulls:
                own.append(_array(next(parts)))
            tidied.update({f"{i}.{j}": part for j, part in enumerate(own)})
        return pa.table(tidied)

    def _merged(self) -> pa.Table:
        table = pa.concat_tables(self._held).combine_chunks()
        order, offsets, keys = group_rows(table, self._inner)
        merged: dict[str, Any] = dict(zip(self._inner, keys.columns, strict=True))
        functions: list[Function] = [(_ROW, "sum", VALID)]
        for i, each in enumerate(self._all):
            count = len(each.parts)
            functions += [(f"{i}.{j}", function, VALID) for j, function in enumerate(each.merges)]
            if not each.merges:
                parts = [_array(table.column(f"{i}.{j}")).take(order) for j in range(count)]
                merged.update({f"{i}.{j}": part for j, part in enumerate(each.merge(parts, offsets))})
            if not each.ignore_nulls:
                functions.append((f"{i}.{count}", "sum", VALID))
        found = _aggregated(table, self._inner, functions).columns[len(self._inner) :]
        merged.update(zip((name for name, _, _ in functions), found, strict=True))
        return pa.table({name: merged[name] for name in table.column_names}).cast(table.schema)


def group_rows(table: pa.Table, keys: list[str]) -> tuple[pa.Array, Offsets, pa.Table]:
    """Row numbers sorted by group, where groups begin, and the key of each group."""
    if not keys:
        return pa.array(np.arange(len(table))), np.array([0, len(table)]), pa.table({})
    numbered = table.select(keys).append_column(_ROW, pa.array(np.arange(len(table))))
    found = numbered.group_by(keys, use_threads=False).aggregate([(_ROW, "list")])
    rows = _array(found.column(f"{_ROW}_list"))
    return rows.flatten(), rows.offsets.to_numpy().astype(np.int64), found.select(keys)


def _aggregated(table: pa.Table, keys: list[str], functions: list[Function]) -> pa.Table:
    """Keys, then one column for each function, in this order. Groups in the order of their first row."""
    if keys:
        specified = [(name, function, _options(function, counted)) for name, function, counted in functions]
        return table.group_by(keys, use_threads=False).aggregate(specified)
    columns = []
    for name, function, counted in functions:
        column = table.column(name)
        if function in ("list", "distinct"):  # these exist for groups only
            values = _array(column)
            if function == "distinct":
                values = values.unique()
                values = values.drop_null() if counted == VALID else values
            columns.append(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values))
        else:
            specified = [(name, function, _options(function, counted))]
            one = pa.table({name: column}).group_by([], use_threads=False).aggregate(specified)
            columns.append(one.column(0))
    return pa.table(columns, names=[f"{at}" for at in range(len(columns))])


def _options(function: str, counted: str) -> Any:
    if function in ("count", "distinct"):
        return pc.CountOptions(mode=counted)
    return pc.VarianceOptions(ddof=0) if function == "variance" else None


def inner_names(keys: Sequence[str]) -> list[str]:
    """What key columns are called here: users may have named them like columns that are added to them."""
    return [f"key {number}" for number in range(len(keys))]


def keys_of(chunk: Chunk, keys: list[str]) -> dict[str, Any]:
    """The key columns by their inner names, such that equal keys are equal bytes."""
    if not keys:
        return {}
    columns = sortable(pa.Table.from_batches([chunk.select(keys)]), keys, f"groupby({', '.join(keys)})")
    return {
        name: pc.add(column, 0.0) if pa.types.is_floating(column.type) else column  # -0.0 becomes 0.0
        for name, column in zip(inner_names(keys), columns.columns, strict=True)
    }


def _array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


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
