"""How prepared datasets travel to workers: plans by pickle, rows that are in memory as attachments.

Where an engine hands attachments over without a copy, all workers map the same file without a name: no row goes through
a pipe, and nothing is left on disk when the last process is gone.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle

from paceline.air.attachment import Attachment
from paceline.air.errors import SerializationError
from paceline.data.ingest.prepared import PreparedDataset
from paceline.data.operations.user_operation import UserOperation
from paceline.data.sources.computed import TableSource
from paceline.data.store import StoredSource, in_file
from paceline.engine.serialization import dumps

_BY_VALUE_BYTES = 64 * 1024
_ADVICE = (
    "What a function of a dataset refers to must be picklable: create locks, files and connections inside the "
    "function, or in the constructor of a callable class."
)


class Parcel:
    """Packed datasets: a pickle, and the rows that belong to it. It is part of the task that workers get."""

    def __init__(self, datasets: Mapping[str, PreparedDataset]) -> None:
        self.rows: list[Attachment] = []
        stream = io.BytesIO()
        try:
            _Packer(stream, self.rows).dump(dict(datasets))
        except Exception as error:
            for name, dataset in datasets.items():
                _name_the_function(name, dataset)
            raise SerializationError(f"The datasets cannot be sent to the workers: {error}. {_ADVICE}") from error
        self.content = stream.getvalue()

    def unpack(self) -> dict[str, PreparedDataset]:
        """The datasets, in the worker."""
        sources = [StoredSource.from_attachment(rows) for rows in self.rows]
        datasets: dict[str, PreparedDataset] = _Unpacker(io.BytesIO(self.content), sources).load()
        return datasets


def _name_the_function(name: str, dataset: PreparedDataset) -> None:
    """Raise for the function of a dataset that cannot be pickled; do nothing if all of them can."""
    for operation in dataset.plan.operations:
        if isinstance(operation, UserOperation):
            function = operation.work.function
            dumps(function.function, f"datasets[{name!r}]: {function.label}", advice=_ADVICE)
            given = {"fn_args": function.args, "fn_kwargs": function.kwargs}
            made_with = {
                "fn_constructor_args": function.constructor_args,
                "fn_constructor_kwargs": function.constructor_kwargs,
            }
            for argument, value in {**given, **made_with}.items():
                dumps(value, f"datasets[{name!r}]: {function.label}, {argument}", advice=_ADVICE)


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no type hints
    def __init__(self, stream: io.BytesIO, rows: list[Attachment]) -> None:
        super().__init__(stream)
        self._rows = rows
        self._numbers: dict[int, tuple[int, Any]] = {}

    def persistent_id(self, value: Any) -> tuple[int, int] | None:
        """A number in place of rows that are handed over as an attachment: (which one, rows per block)."""
        if not isinstance(value, TableSource | StoredSource):
            return None
        if isinstance(value, TableSource) and value.table.nbytes <= _BY_VALUE_BYTES:
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._rows), value
            self._rows.append(in_file(value))
        return self._numbers[id(value)][0], value.block_rows


class _Unpacker(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, sources: Sequence[StoredSource]) -> None:
        super().__init__(stream)
        self._sources = sources

    def persistent_load(self, number: Any) -> StoredSource:
        index, block_rows = number
        source: StoredSource = self._sources[index].with_block_rows(block_rows)
        return source
