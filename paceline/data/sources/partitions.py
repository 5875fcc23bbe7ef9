"""Columns that are in the names of directories: `sales/year=2024/month=3/part-0.parquet`.

Only the part of a path below what the user gave counts. Values that are all whole numbers become int64, others strings.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paceline.air.errors import DataError

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.sources.file_entry import FileEntry

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Partitions:
    """The columns, and for each file their values."""

    fields: tuple[pa.Field, ...]
    values: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, files: Sequence[FileEntry]) -> Partitions:
        found = [_parse(file.below) for file in files]
        names = list(found[0])
        for file, values in zip(files, found, strict=True):
            if list(values) != names:
                raise DataError(
                    f"{files[0].label} and {file.label} differ in what their directories name: "
                    f"{names or 'nothing'} and {list(values) or 'nothing'}. Read them as separate datasets."
                )
        fields, columns = [], []
        for name in names:
            column, kind = _typed([values[name] for values in found])
            fields.append(pa.field(name, kind))
            columns.append(column)
        return cls(tuple(fields), tuple(zip(*columns, strict=True)) if columns else ())

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.fields]

    def without(self, stored: Sequence[str]) -> Partitions:
        """Without the columns that the files hold themselves."""
        kept = [index for index, field in enumerate(self.fields) if field.name not in stored]
        values = tuple(tuple(row[index] for index in kept) for row in self.values) if kept else ()
        return Partitions(tuple(self.fields[index] for index in kept), values)

    def add_to(self, chunk: Chunk, file: int, names: Sequence[str]) -> Chunk:
        """The chunk with those of these columns that are among `names`."""
        arrays, fields = list(chunk.columns), list(chunk.schema)
        for index, field in enumerate(self.fields):
            if field.name in names:
                fields.append(field)
                arrays.append(pa.repeat(pa.scalar(self.values[file][index], field.type), chunk.num_rows))
        if not arrays:
            return chunk
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _parse(below: str) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for directory in below.split("/")[:-1]:
        name, equals, value = directory.partition("=")
        if name and equals:
            values[urllib.parse.unquote(name)] = None if value == _NO_VALUE else urllib.parse.unquote(value)
    return values


def _typed(values: list[str | None]) -> tuple[list[Any], pa.DataType]:
    try:
        numbers = [None if value is None else int(value) for value in values]
    except ValueError:
        return list(values), pa.string()
    exact = all(value is None or str(number) == value for value, number in zip(values, numbers, strict=True))
    if exact and all(number is None or -(2**63) <= number < 2**63 for number in numbers):
        return list(numbers), pa.int64()
    return list(values), pa.string()  # "007" is a name, not a number
