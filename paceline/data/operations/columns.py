"""Choosing, dropping and renaming columns, told to the source so that it reads no more than needed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from paceline.air.errors import DataError
from paceline.data.plan import BlockPlace, Operation

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk


def no_such_column(name: str, known: Sequence[str]) -> str:
    """What a message says about a column that is not there."""
    near = difflib.get_close_matches(name, known, n=1)
    meant = f": did you mean {near[0]!r}?" if near else "."
    return f"there is no column {name!r}{meant} The columns are {list(known)}."


class ColumnOperation(Operation):
    """`checked`: the columns are known to be there. Then one that does not come along was not asked for.

    Otherwise (a user's function makes the columns) all of them come, and one that is missing is an error.
    """

    keeps_row_count = True
    row_local = True
    native = True

    def __init__(self, *, checked: bool) -> None:
        self.checked = checked

    def _check(self, named: Sequence[str], chunk: Chunk, place: BlockPlace) -> None:
        if not self.checked:
            names = chunk.schema.names
            missing = set(named).difference(names)
            for name in named:
                if name in missing:
                    raise DataError(f"{self.label} on {place.name}: {no_such_column(name, names)}")


class SelectColumns(ColumnOperation):
    def __init__(self, columns: Sequence[str], *, checked: bool) -> None:
        super().__init__(checked=checked)
        self.columns = tuple(columns)

    @property
    def label(self) -> str:
        return f"select_columns({', '.join(self.columns)})"

    def input_columns(self, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if wanted is None or not self.checked:
            return self.columns
        chosen = set(wanted)
        return tuple(name for name in self.columns if name in chosen)

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        import pyarrow as pa

        return pa.schema([schema.field(name) for name in self.columns])

    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        for chunk in chunks:
            self._check(self.columns, chunk, place)
            there = set(chunk.schema.names)
            yield chunk.select([name for name in self.columns if name in there])


class DropColumns(ColumnOperation):
    """For columns that a user's function makes; where all names are known, SelectColumns does it."""

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__(checked=False)
        self.columns = tuple(columns)

    @property
    def label(self) -> str:
        return f"drop_columns({', '.join(self.columns)})"

    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        for chunk in chunks:
            self._check(self.columns, chunk, place)
            yield chunk.select([name for name in chunk.schema.names if name not in self.columns])


class RenameColumns(ColumnOperation):
    def __init__(self, names: Mapping[str, str], *, checked: bool) -> None:
        super().__init__(checked=checked)
        self.names = dict(names)

    @property
    def label(self) -> str:
        return f"rename_columns({', '.join(f'{old} -> {new}' for old, new in self.names.items())})"

    def input_columns(self, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if wanted is None or not self.checked:
            return None
        old_names = {new: old for old, new in self.names.items()}
        return tuple(old_names.get(name, name) for name in wanted)

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        import pyarrow as pa

        return pa.schema([field.with_name(self.names.get(field.name, field.name)) for field in schema])

    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        import pyarrow as pa

        for chunk in chunks:
            self._check(list(self.names), chunk, place)
            names = [self.names.get(name, name) for name in chunk.schema.names]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DataError(f"{self.label} on {place.name}: there would be two columns named {twice!r}.")
            fields = [field.with_name(name) for field, name in zip(chunk.schema, names, strict=True)]
            yield pa.RecordBatch.from_arrays(chunk.columns, schema=pa.schema(fields))
