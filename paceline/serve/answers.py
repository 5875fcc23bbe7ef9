"""The predictions of a batch, cut into one answer for each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from paceline.data.tensors import is_tensor, tensor_to_numpy
from paceline.serve.rows import Rows

Answer: TypeAlias = dict[str, list[Any]] | pa.RecordBatch
"""Columns of values for JSON, or Arrow rows."""


class Asked(Protocol):
    """What must be known of a request to answer it."""

    @property
    def rows(self) -> Rows: ...

    @property
    def arrow(self) -> bool: ...


def split(predictions: pa.RecordBatch, requests: Sequence[Asked]) -> list[Answer]:
    """One answer for each request, in the order in which their rows were joined."""
    columns: dict[str, list[Any]] = {}
    if not all(request.arrow for request in requests):
        columns = {
            name: _values(array) for name, array in zip(predictions.schema.names, predictions.columns, strict=True)
        }
    if len(requests) == 1:
        return [predictions if requests[0].arrow else columns]
    answers: list[Answer] = []
    start = 0
    for request in requests:
        end = start + request.rows.count
        if request.arrow:
            answers.append(predictions.slice(start, end - start))
        else:
            answers.append({name: values[start:end] for name, values in columns.items()})
        start = end
    return answers


def _values(array: pa.Array) -> list[Any]:
    """A column as Python values."""
    if is_tensor(array.type):
        return [None if cell is None else cell.tolist() for cell in tensor_to_numpy(array, copy=False)]
    types = pa.types
    if (types.is_floating(array.type) or types.is_integer(array.type)) and not array.null_count:
        return array.to_numpy().tolist()  # type: ignore[no-any-return]  # many times quicker than to_pylist
    return array.to_pylist()  # type: ignore[no-any-return]
