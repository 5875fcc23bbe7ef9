"""Column aggregations over groups: a table with a row per group, made and merged by Arrow's hash aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.errors import DataError
from paceline.data.aggregate import VALID, ColumnAggregation, Offsets
from paceline.data.sources.computed import sortable

if TYPE_CHECKING:
    from paceline.data.block import Chunk

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
