"""What built-in preprocessors share: checking their columns, and replacing them in a chunk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from paceline.air.errors import ConfigError, DataError


def checked_columns(columns: Any, what: str) -> list[str]:
    """The names of columns as a list of their own; each once, at least one."""
    if isinstance(columns, str) or not isinstance(columns, list | tuple):
        raise ConfigError(f"{what}: columns is {columns!r}: give a list of names, such as ['x', 'y'].")
    wrong = [name for name in columns if not isinstance(name, str)]
    if wrong or not columns:
        raise ConfigError(f"{what}: columns is {columns!r}: give the names of one or more columns.")
    if len(set(columns)) < len(columns):
        raise ConfigError(f"{what}: columns is {columns!r}: a name occurs more than once.")
    return list(columns)


def column_of(chunk: pa.RecordBatch, name: str, what: str) -> pa.Array:
    """A column of a chunk; `what` is the preprocessor that needs it."""
    index = chunk.schema.get_field_index(name)
    if index < 0:
        raise DataError(f"{what}: there is no column {name!r}; the columns are {chunk.schema.names}.")
    return chunk.column(index)


def with_columns(chunk: pa.RecordBatch, replaced: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """The chunk with these columns instead of those of the same name; new ones come last."""
    columns = dict(zip(chunk.schema.names, chunk.columns, strict=True))
    columns.update(replaced)
    return pa.record_batch(list(columns.values()), list(columns))
