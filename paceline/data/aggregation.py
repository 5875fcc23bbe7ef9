"""Aggregates over groups in one pass: memory goes with the number of groups, not of rows.

Every block gives a table with one row per group (its keys and the parts of each aggregation);
such tables are merged to one of the same kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.errors import ConfigError, DataError
from paceline.data.aggregate import VALID, AggregateFn, Aggregation, ColumnAggregation, Offsets
from paceline.data.column_arrays import column_array
from paceline.data.formats import to_rows
from paceline.data.operations.columns import no_such_column
from paceline.data.sources.computed import sort_order, sortable

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.plan import Plan

ROWS_TO_MERGE_AT = 1 << 18
_ROW = "row"
Function = tuple[str, str, str]
"""A column, what to compute of it, which values count."""


@dataclass
class Partial:
    """What is known of the groups in some of the rows."""

    table: pa.Table
    accumulators: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)
    """Of the user's own aggregations: one for each, by group."""


class Aggregator:
    """Computes `aggregations` for the groups that agree in the columns `keys`; without keys all rows are one group."""

    def __init__(self, keys: tuple[str, ...], aggregations: Sequence[Aggregation]) -> None:
        for each in aggregations:
            if not isinstance(each, Aggregation):
                raise ConfigError(f"aggregate takes Sum(...), Mean(...), AggregateFn(...) and the like, not {each!r}.")
        names = [*keys, *(each.name for each in aggregations)]
        if len(set(names)) < len(names):
            raise ConfigError(f"the result would have two columns of one name among {names}: use alias_name.")
        self._keys = list(keys)
        self._inner = _inner_names(keys)
        self._all = list(aggregations)
        self._native = [each for each in aggregations if isinstance(each, ColumnAggregation)]
        self._own = [each for each in aggregations if isinstance(each, AggregateFn)]

    def run(self, plan: Plan) -> pa.Table:
        """One row per group, sorted by key, with the keys and the results."""
        from paceline.data.execution import map_blocks

        schema = plan.schema()
        found = self._merged(map_blocks(plan, self._of_block, columns=self._columns(schema)))
        if found is None:
            found = self._of_chunk(pa.RecordBatch.from_pylist([], schema))
        return self._result(found)

    def schema(self, schema: pa.Schema) -> pa.Schema | None:
        """That of the result, for rows of this schema; None if functions of the user's decide."""
        if self._own:
            return None
        self._columns(schema)
        return self._result(self._of_chunk(pa.RecordBatch.from_pylist([], schema))).schema

    def _columns(self, schema: pa.Schema) -> tuple[str, ...] | None:
        """What has to be read."""
        wanted = [*self._keys, *(each.on for each in self._native if each.on is not None)]
        known = set(schema.names)
        for name in wanted:
            if name not in known:
                what = "groupby" if name in self._keys else next(each.name for each in self._native if each.on == name)
                raise DataError(f"{what}: {no_such_column(name, schema.names)}")
        if self._own or not wanted:
            return None  # a function of the user's may look at any column; and rows without columns cannot be counted
        return tuple(dict.fromkeys(wanted))

    # -- one block ------------------------------------------------------------------------

    def _of_block(self, _: int, chunks: Iterator[Chunk]) -> Partial | None:
        return self._merged(self._of_chunk(chunk) for chunk in chunks if chunk.num_rows)

    def _of_chunk(self, chunk: Chunk) -> Partial:
        columns = _keys_of(chunk, self._keys)
        columns[_ROW] = pa.array(np.zeros(chunk.num_rows, np.int8))
        functions: list[Function] = [(_ROW, "count", VALID)]
        for i, each in enumerate(self._native):
            columns[f"{i}"] = each.values(chunk)
            functions += [(f"{i}", *part) for part in each.parts]
            if not each.ignore_nulls:
                functions.append((f"{i}", "count", "only_null"))
        try:
            found = _aggregated(pa.table(columns), self._inner, functions)
        except pa.ArrowNotImplementedError as error:
            told = ", ".join([*self._keys, *(each.name for each in self._native)])
            raise DataError(f"aggregate({told}): {error}. Convert the column to another type first.") from error
        names = [*self._inner, _ROW]
        tidied: dict[str, Any] = dict(zip(names, found.columns, strict=False))
        parts = iter(found.columns[len(names) :])
        for i, each in enumerate(self._native):
            own = each.tidied([_array(next(parts)) for _ in each.parts])
            if not each.ignore_nulls:
                own.append(_array(next(parts)))
            tidied.update({f"{i}.{j}": part for j, part in enumerate(own)})
        return Partial(pa.table(tidied), self._accumulated(chunk) if self._own else {})

    def _accumulated(self, chunk: Chunk) -> dict[tuple[Any, ...], list[Any]]:
        if not chunk.num_rows:
            return {} if self._keys else {(): [each.init(None) for each in self._own]}
        result = {}
        for key, rows in _groups(chunk, self._keys):
            told = None if not key else key[0] if len(key) == 1 else key
            result[key] = [_accumulate(each, each.init(told), rows) for each in self._own]
        return result

    # -- merging --------------------------------------------------------------------------

    def _merged(self, partials: Iterable[Partial | None]) -> Partial | None:
        """All in one; they are merged in portions so that no more than a few of them are held. None: no rows."""
        held: list[pa.Table] = []
        accumulators: dict[tuple[Any, ...], list[Any]] = {}
        for partial in partials:
            if partial is None:
                continue
            held.append(partial.table)
            self._absorb(accumulators, partial.accumulators)
            if sum(len(table) for table in held[1:]) > max(ROWS_TO_MERGE_AT, len(held[0])):
                held = [self._merged_table(held)]
        return Partial(self._merged_table(held), accumulators) if held else None

    def _absorb(self, into: dict[tuple[Any, ...], list[Any]], more: dict[tuple[Any, ...], list[Any]]) -> None:
        for key, values in more.items():
            known = into.get(key)
            if known is not None:
                values = [each.merge(a, b) for each, a, b in zip(self._own, known, values, strict=True)]
            into[key] = values

    def _merged_table(self, tables: list[pa.Table]) -> pa.Table:
        if len(tables) == 1:
            return tables[0]
        table = pa.concat_tables(tables).combine_chunks()
        order, offsets, keys = group_rows(table, self._inner)
        merged: dict[str, Any] = dict(zip(self._inner, keys.columns, strict=True))
        functions: list[Function] = [(_ROW, "sum", VALID)]
        for i, each in enumerate(self._native):
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

    # -- the result -----------------------------------------------------------------------

    def _result(self, partial: Partial) -> pa.Table:
        table = partial.table
        results: dict[str, Any] = dict(zip(self._keys, table.select(self._inner).columns, strict=True))
        keys = _key_tuples(table, self._inner) if self._own else []
        for each in self._all:
            if isinstance(each, ColumnAggregation):
                results[each.name] = self._finished(table, self._native.index(each))
            elif isinstance(each, AggregateFn):
                place = self._own.index(each)
                values = [_finalized(each, partial.accumulators[key][place]) for key in keys]
                results[each.name] = column_array(values, each.name, f"aggregate({each.name})")
        result = pa.table(results)
        if not self._keys:
            return result
        return result.take(pa.array(sort_order(result, tuple((key, False) for key in self._keys), "groupby")))

    def _finished(self, table: pa.Table, i: int) -> pa.Array:
        each = self._native[i]
        result = each.finish([_array(table.column(f"{i}.{j}")) for j in range(len(each.parts))])
        if each.ignore_nulls:
            return result
        nulls = _array(table.column(f"{i}.{len(each.parts)}"))
        return pc.if_else(pc.greater(nulls, 0), None, result)


def with_columns_named(
    aggregations: Sequence[Aggregation], schema: Callable[[], pa.Schema], keys: Sequence[str]
) -> list[Aggregation]:
    """The aggregations, those that name no column over the only one that is not a key."""
    if not any(isinstance(each, ColumnAggregation) and each.needs_column for each in aggregations):
        return list(aggregations)  # the schema is not needed
    columns = [name for name in schema().names if name not in keys]
    return [each.over(columns) if isinstance(each, ColumnAggregation) else each for each in aggregations]


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


def _inner_names(keys: Sequence[str]) -> list[str]:
    """What key columns are called here: users may have named them like columns that are added to them."""
    return [f"key {number}" for number in range(len(keys))]


def _keys_of(chunk: Chunk, keys: list[str]) -> dict[str, Any]:
    """The key columns by their inner names, such that equal keys are equal bytes."""
    if not keys:
        return {}
    columns = sortable(pa.Table.from_batches([chunk.select(keys)]), keys, f"groupby({', '.join(keys)})")
    return {
        name: pc.add(column, 0.0) if pa.types.is_floating(column.type) else column  # -0.0 becomes 0.0
        for name, column in zip(_inner_names(keys), columns.columns, strict=True)
    }


def _groups(chunk: Chunk, keys: list[str]) -> Iterator[tuple[tuple[Any, ...], Chunk]]:
    """The rows of each group of a chunk."""
    if not keys:
        yield (), chunk
        return
    inner = _inner_names(keys)
    order, offsets, found = group_rows(pa.table(_keys_of(chunk, keys)), inner)
    rows = chunk.take(order)
    for key, (start, stop) in zip(_key_tuples(found, inner), pairwise(offsets), strict=True):
        yield key, rows.slice(int(start), int(stop - start))


def _key_tuples(table: pa.Table, keys: list[str]) -> list[tuple[Any, ...]]:
    if not keys:
        return [()]
    columns = [table.column(name).to_pylist() for name in keys]
    # math.nan is one object, and therefore found again in a dict.
    return [tuple(math.nan if cell != cell else cell for cell in row) for row in zip(*columns, strict=True)]


def _accumulate(each: AggregateFn, accumulator: Any, rows: Chunk) -> Any:
    try:
        if each.accumulate_block is not None:
            return each.accumulate_block(accumulator, pa.Table.from_batches([rows]))
        assert each.accumulate_row is not None
        for row in to_rows(rows):
            accumulator = each.accumulate_row(accumulator, row)
    except Exception as error:
        raise DataError(f"aggregate({each.name}) failed: {type(error).__name__}: {error}") from error
    return accumulator


def _finalized(each: AggregateFn, accumulator: Any) -> Any:
    return accumulator if each.finalize is None else each.finalize(accumulator)


def _array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
