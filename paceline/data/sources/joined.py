"""Rows of two datasets that agree in some columns, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from paceline.air.checks import check_choice
from paceline.air.errors import DataError
from paceline.data.row_blocks import MOST_BLOCK_ROWS
from paceline.data.sources.computed import ComputedSource
from paceline.data.sources.sorted_rows import sortable
from paceline.data.sources.zipped import new_names
from paceline.data.store import BATCH_BYTES, StoredSource, store, stored

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.plan import Plan

_KINDS = {
    "inner": "inner",
    "left": "left outer",
    "right": "right outer",
    "outer": "full outer",
    "left_semi": "left semi",
    "left_anti": "left anti",
}
_LEFT, _RIGHT = "left row", "right row"


class JoinedSource(ComputedSource):
    """Arrow joins the keys and row numbers alone; the other columns, of whatever type, are fetched by these numbers.

    The order is that of the left rows, then of the right ones: Arrow's own differs from run to run.
    """

    def __init__(self, left: Plan, right: Plan, on: tuple[str, ...], how: str) -> None:
        check_choice(how, "how", tuple(_KINDS))
        super().__init__((left, right))
        self._on = on
        self._how = how

    def describe(self) -> str:
        return f"join(on={', '.join(self._on)}, how={self._how!r})"

    def _schema_before(self) -> pa.Schema:
        left, right = (child.schema() for child in self._children)
        renamed = new_names(left.names, self._others(right))
        fields = [*left, *(right.field(old).with_name(new) for new, old in renamed.items())]
        if self._keys_of_both:
            fields = [self._key_field(field, right) if field.name in self._on else field for field in fields]
        return pa.schema([field.with_nullable(True) for field in fields])

    @property
    def _keys_of_both(self) -> bool:
        """Whether there are rows that have their keys from the right side."""
        return self._how in ("right", "outer")

    @property
    def _left_only(self) -> bool:
        """Whether the result is a part of the left rows."""
        return self._how in ("left_semi", "left_anti")

    def _key_field(self, field: pa.Field, right: pa.Schema) -> pa.Field:
        other = right.field(field.name).type if field.name in right.names else field.type
        return field if field.type == other else field.with_type(_common_type(field.type, other) or field.type)

    def _others(self, right: pa.Schema) -> list[str]:
        """The columns that come from the right side: all but the keys."""
        return [name for name in right.names if name not in self._on and not self._left_only]

    def _rows_before(self) -> None:
        return None

    def _compute(self) -> StoredSource:
        left, right = (stored(child) for child in self._children)
        pairs = self._pairs(left.table(), right.table())
        schema = self._schema_before()
        return store(self._rows(pairs, left, right, schema), schema)

    def _pairs(self, left: pa.Table, right: pa.Table) -> pa.Table:
        """Keys, left and right row number (null: no partner), in the order of the result."""
        names = list(self._on)
        left_keys = sortable(left, names, f"{self.describe()}, left side")
        right_keys = sortable(right, names, f"{self.describe()}, right side")
        inner = [f"key {number}" for number in range(len(names))]  # users' names may be any
        left_columns, right_columns = {}, {}
        for name, new in zip(names, inner, strict=True):
            one, other = left_keys.column(name), right_keys.column(name)
            common = _common_type(one.type, other.type)
            if common is None or pa.types.is_null(common):
                raise DataError(
                    f"{self.describe()}: column {name!r} is {one.type} on the left and {other.type} on the right, and "
                    "values of these types cannot be compared. Convert one side first (map_batches)."
                )
            left_columns[new], right_columns[new] = one.cast(common), other.cast(common)
        left_numbered = pa.table({**left_columns, _LEFT: np.arange(len(left))})
        right_numbered = pa.table({**right_columns, _RIGHT: np.arange(len(right))})
        joined = left_numbered.join(right_numbered, keys=inner, join_type=_KINDS[self._how])
        numbers = [_LEFT] if self._left_only else [_LEFT, _RIGHT]
        ordered = joined.sort_by([(number, "ascending") for number in numbers]).combine_chunks()
        return ordered.select([*inner, *numbers])

    def _rows(self, pairs: pa.Table, left: StoredSource, right: StoredSource, schema: pa.Schema) -> Iterator[Chunk]:
        others = tuple(self._others(right.schema()))
        row_bytes = left.size_bytes / max(1, left.rows) + right.size_bytes / max(1, right.rows)
        step = max(1, min(MOST_BLOCK_ROWS, int(BATCH_BYTES / max(1.0, row_bytes))))
        for start in range(0, len(pairs), step):
            part = pairs.slice(start, step)
            left_numbers, no_left = _numbers(part.column(_LEFT))
            left_rows = left.take(left_numbers, missing=no_left)
            if self._left_only:
                yield pa.RecordBatch.from_arrays(left_rows.columns, schema=schema)
                continue
            right_numbers, no_right = _numbers(part.column(_RIGHT))
            right_rows = right.take(right_numbers, others, missing=no_right)
            columns = dict(zip(left_rows.schema.names, left_rows.columns, strict=True))
            for number, name in enumerate(self._on if self._keys_of_both else ()):
                columns[name] = _with_type(part.column(number).combine_chunks(), schema.field(name).type)
            yield pa.RecordBatch.from_arrays([*columns.values(), *right_rows.columns], schema=schema)


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type in which values of both can be compared; None if there is none."""
    plain = [each.value_type if pa.types.is_dictionary(each) else each for each in (one, other)]
    schemas = [pa.schema([pa.field("key", each)]) for each in plain]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field("key").type
    except pa.ArrowException:
        return None


def _with_type(keys: pa.Array, wanted: pa.DataType) -> pa.Array:
    if not pa.types.is_dictionary(wanted):
        return keys.cast(wanted)
    encoded = keys.dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        encoded.indices.cast(wanted.index_type), encoded.dictionary.cast(wanted.value_type), ordered=wanted.ordered
    )


def _numbers(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray | None]:
    """Row numbers, and which are missing."""
    array = column.combine_chunks()
    if not array.null_count:
        return array.to_numpy(), None
    return array.fill_null(0).to_numpy(), np.asarray(array.is_null())
