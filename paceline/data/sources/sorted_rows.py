"""All rows in the order of some columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air.errors import DataError
from paceline.data.operations.columns import no_such_column
from paceline.data.sources.computed import ComputedSource
from paceline.data.store import Indices, StoredSource, store, stored

if TYPE_CHECKING:
    from paceline.data.plan import Plan


class SortedSource(ComputedSource):
    """Sorted by Arrow: stable, nulls last. In memory are the key columns and a number per row, not the rows."""

    def __init__(self, child: Plan, keys: tuple[tuple[str, bool], ...], method: str = "sort") -> None:
        super().__init__((child,))
        self._keys = keys
        """Columns, and whether each is to descend."""
        self._method = method
        """What the user called, for messages."""

    def describe(self) -> str:
        return f"{self._method}({', '.join(name for name, _ in self._keys)})"

    def _compute(self) -> StoredSource:
        rows = stored(self._children[0])
        order = sort_order(rows.table(), self._keys, self.describe())
        return store(rows.take_in_chunks(order), rows.schema())

    def _schema_before(self) -> pa.Schema:
        return self._children[0].schema()

    def _rows_before(self) -> int | None:
        return sum(self._children[0].row_counts()) if self._children[0].knows_counts else None


def sort_order(table: pa.Table, keys: tuple[tuple[str, bool], ...], what: str) -> Indices:
    """The numbers of the rows, in sorted order."""
    names = [name for name, _ in keys]
    columns = sortable(table, names, what)
    orders = [(name, "descending" if descending else "ascending") for name, descending in keys]
    order: Indices = pc.sort_indices(columns, sort_keys=orders).to_numpy().astype(np.int64)
    return order


def sortable(table: pa.Table, names: list[str], what: str) -> pa.Table:
    """The key columns, of types that Arrow orders."""
    columns = {}
    for name in names:
        if name not in table.column_names:
            raise DataError(f"{what}: {no_such_column(name, table.column_names)}")
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())
        if pa.types.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType):
            raise DataError(
                f"{what}: column {name!r} holds {column.type}, which has no order; use a column of plain values."
            )
        columns[name] = column
    return pa.table(columns)
