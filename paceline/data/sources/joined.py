"""Rows of two datasets side by side: by their order (zip), or where they agree in some columns (join)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.checks import check_choice, warn_at_users_line
from paceline.air.errors import ConfigError, DataError
from paceline.data.block import MOST_BLOCK_ROWS, Block, ReadRequest
from paceline.data.plan import CombinedSource
from paceline.data.sources.computed import ComputedSource, sortable
from paceline.data.sources.slices import RowMap
from paceline.data.store import BATCH_BYTES, StoredSource, store, stored

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.plan import Plan


_HOW = {
    "inner": "inner",
    "left_outer": "left",
    "right_outer": "right",
    "full_outer": "outer",
    "left_semi": "left_semi",
    "left_anti": "left_anti",
    "right_semi": "right_semi",
    "right_anti": "right_anti",
}
_NEED_NO_SETTING = ("partition_size_hint", "aggregator_ray_remote_args", "validate_schemas")


def keys_and_kind(positional: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, str]:
    """`on` and `how`, from ``(on, how)`` or ``(join_type, num_partitions, on)``.

    The number of partitions is for a cluster: one process joins here, within bounded memory.
    """
    of_ray = "join_type" in named or "num_partitions" in named or _starts_with_type(positional, named)
    order = ("join_type", "num_partitions", "on") if of_ray else ("on", "how")
    if len(positional) > len(order):
        raise TypeError(f"Dataset.join() takes {', '.join(order)} by position; write the others as keywords.")
    given = dict(zip(order, positional, strict=False))
    for name, value in named.items():
        if name in given:
            raise TypeError(f"Dataset.join() got multiple values for argument {name!r}.")
        if name in _NEED_NO_SETTING:
            if value:
                warn_at_users_line(f"join: {name} has no effect: there is no cluster that joins parts of the data.")
        elif name not in (*order, "num_partitions"):
            raise TypeError(f"Dataset.join() got an unexpected keyword argument {name!r}; it takes {', '.join(order)}.")
        given[name] = value
    if of_ray:
        check_choice(given.get("join_type"), "join_type", tuple(_HOW))
        return given.get("on", ("id",)), _HOW[given["join_type"]]
    if "on" not in given:
        raise TypeError("Dataset.join() needs on=, the names of the columns in which rows agree.")
    return given["on"], given.get("how", "inner")


def _starts_with_type(positional: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether the first argument is a join_type: it could also be the name of a column."""
    if not positional or positional[0] not in tuple(_HOW):
        return False
    return "on" in named or (len(positional) > 1 and isinstance(positional[1], int))


def suffixed(
    left: Sequence[str], right: Sequence[str], on: Sequence[str], suffixes: tuple[str | None, str | None]
) -> tuple[dict[str, str], dict[str, str]]:
    """New names for the columns, other than the keys, that both sides have."""
    both = [name for name in left if name in right and name not in on]
    for suffix in suffixes:
        if suffix is not None and not isinstance(suffix, str):
            raise ConfigError(f"join: a suffix is text, not {suffix!r}.")
    one, other = ({name: name + suffix for name in both} if suffix else {} for suffix in suffixes)
    return one, other


class ZippedSource(CombinedSource):
    """The columns of both. Blocks are those of the left one.

    Its order is the same in every epoch: if one side were shuffled anew, other rows would meet.
    """

    def __init__(self, left: Plan, right: Plan) -> None:
        super().__init__((left, right))
        self._rows: tuple[RowMap, RowMap] | None = None

    @property
    def _left(self) -> Plan:
        return self.children[0]

    @property
    def _right(self) -> Plan:
        return self.children[1]

    def describe(self) -> str:
        return f"zip({self._left.describe()}, {self._right.describe()})"

    def schema(self) -> pa.Schema:
        right = self._right.schema()
        renamed = [right.field(old).with_name(new) for new, old in self._right_names().items()]
        return pa.schema([*self._left.schema(), *renamed])

    def blocks(self) -> Sequence[Block]:
        self._found_rows()
        return [Block(block.name, block.rows) for block in self._left.counted().blocks()]

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        left_rows, right_rows = self._found_rows()
        renamed = self._right_names()
        wanted = self.schema().names if request.columns is None else list(request.columns)
        left_columns = tuple(name for name in wanted if name not in renamed)
        right_columns = tuple(renamed[name] for name in wanted if name in renamed)
        start, stop = request.within(left_rows.start_of(block), left_rows.start_of(block + 1))
        # A side of which no column is wanted is not read.
        if not right_columns:
            yield from self._left.read(block, request)
            return
        right = right_rows.read(self._right, start, stop, replace(request, columns=right_columns))
        if left_columns:
            left = self._left.read(block, replace(request, columns=left_columns))
        else:
            left = None
        right_new = [name for name in wanted if name in renamed]
        for left_part, right_part in _side_by_side(left, right):
            columns = dict(zip(right_new, right_part.columns, strict=True))
            if left_part is not None:
                columns.update(zip(left_columns, left_part.columns, strict=True))
            yield pa.RecordBatch.from_arrays([columns[name] for name in wanted], names=wanted)

    def for_epoch(self, epoch: int) -> ZippedSource:
        return self

    def _right_names(self) -> dict[str, str]:
        return new_names(self._left.schema().names, self._right.schema().names)

    def _found_rows(self) -> tuple[RowMap, RowMap]:
        if self._rows is None:
            left, right = RowMap(self._left.row_counts()), RowMap(self._right.row_counts())
            if left.rows != right.rows:
                raise DataError(
                    f"zip needs two datasets with equally many rows: {self._left.describe()} has {left.rows},"
                    f" {self._right.describe()} has {right.rows}."
                )
            self._rows = left, right
        return self._rows


def new_names(left: Sequence[str], right: Sequence[str]) -> dict[str, str]:
    """New names of the right columns -> their own; one that the left side has gets _1 (or _2, ...) at its end."""
    taken = set(left)
    names: dict[str, str] = {}
    for name in right:
        new, number = name, 0
        while new in taken:
            number += 1
            new = f"{name}_{number}"
        taken.add(new)
        names[new] = name
    return names


def _side_by_side(left: Iterator[Chunk] | None, right: Iterator[Chunk]) -> Iterator[tuple[Chunk | None, Chunk]]:
    """Both streams in portions of the same length."""
    if left is None:
        for chunk in right:
            yield None, chunk
        return
    left_part: Chunk | None = None
    right_part: Chunk | None = None
    while True:
        left_part = left_part or _next_with_rows(left)
        right_part = right_part or _next_with_rows(right)
        if left_part is None or right_part is None:
            if left_part is not right_part:
                raise DataError("zip: one side had fewer rows now than when they were counted.")
            return
        rows = min(left_part.num_rows, right_part.num_rows)
        yield left_part.slice(0, rows), right_part.slice(0, rows)
        left_part = left_part.slice(rows) if left_part.num_rows > rows else None
        right_part = right_part.slice(rows) if right_part.num_rows > rows else None


def _next_with_rows(chunks: Iterator[Chunk]) -> Chunk | None:
    return next((chunk for chunk in chunks if chunk.num_rows), None)


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
