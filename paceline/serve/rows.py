"""The rows of one request, in a form in which those of several are quickly joined; and the answers, cut apart again."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from paceline.data.formats import concat, to_batch
from paceline.data.tensors import is_tensor, tensor_array, tensor_to_numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paceline.serve.columns import InputColumns
    from paceline.train.predictor import BatchFormat

Column = tuple[str, Any]
"""A kind ("int", "number", "bool", "text", "tensor", "nothing") and the values: a list, of tensors an array."""


@dataclass(frozen=True)
class NumberTypes:
    """What JSON's numbers become; JSON itself has one kind of number only."""

    whole: type[np.generic] = np.int64
    other: type[np.generic] = np.float64
    keep_untyped: bool = False
    """A column in which every value is missing has no type, which preprocessors understand; else it has numbers."""

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """An array of JSON's numbers in the type that the model takes."""
        kind = array.dtype.kind
        return array.astype(self.whole if kind in "iu" else self.other, copy=False) if kind in "iuf" else array


@dataclass(frozen=True, slots=True)
class Numbers:
    """A matrix whose columns have names; NaN stands for null."""

    names: tuple[str, ...]
    matrix: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RequestRows:
    """What a request asks about. Rows with equal keys can be predicted together."""

    count: int
    content: dict[str, Column] | Numbers | NDArray[Any] | pa.RecordBatch
    """Columns of a JSON body, the same where all are numbers, a matrix without names, or an Arrow body."""
    key: Hashable

    def head(self, most: int) -> RequestRows:
        """The first rows."""
        if self.count <= most:
            return self
        content = self.content
        if isinstance(content, dict):
            return RequestRows(
                most, {name: (kind, values[:most]) for name, (kind, values) in content.items()}, self.key
            )
        if isinstance(content, Numbers):
            return RequestRows(most, Numbers(content.names, content.matrix[:most]), self.key)
        return RequestRows(
            most, content.slice(0, most) if isinstance(content, pa.RecordBatch) else content[:most], self.key
        )


def zeros(columns: InputColumns) -> RequestRows | None:
    """A row that every model over these columns can predict; None where not all of them are known to be numbers."""
    if not columns.only_numbers:
        return None
    return RequestRows(1, Numbers(columns.names, np.zeros((1, len(columns.names)))), None)


def joined(
    parts: Sequence[RequestRows],
    batch_format: BatchFormat,
    types: NumberTypes,
    *,
    matrix_order: tuple[str, ...] | None = None,
) -> Any:
    """The rows of all requests, in this order, as a batch for a predictor.

    `matrix_order`: one that takes its features as a bare array, in this order, gets them so, which saves work for each
    column. Rows that were read for the model before it may have another order, and keep their names.
    """
    first = parts[0].content
    contents: list[Any] = [part.content for part in parts]
    if isinstance(first, np.ndarray):
        return types.of(first if len(parts) == 1 else np.concatenate(contents))
    if isinstance(first, pa.RecordBatch):
        return to_batch(concat(contents), batch_format, copy=True)
    if isinstance(first, Numbers):
        matrix = first.matrix if len(parts) == 1 else np.concatenate([content.matrix for content in contents])
        return matrix if first.names == matrix_order else _named(first.names, matrix, batch_format)
    arrays = []
    for name, (kind, values) in first.items():
        if len(parts) > 1:
            pieces = [content[name][1] for content in contents]
            values = np.concatenate(pieces) if kind == "tensor" else [value for piece in pieces for value in piece]
        arrays.append(_array(kind, values, types))
    return to_batch(pa.RecordBatch.from_arrays(arrays, names=list(first)), batch_format, copy=True)


def _named(names: Sequence[str], matrix: NDArray[np.float64], batch_format: BatchFormat) -> Any:
    by_column = np.ascontiguousarray(matrix.T)
    if batch_format == "numpy":
        return dict(zip(names, by_column, strict=True))
    arrays = [pa.array(column, from_pandas=True) for column in by_column]
    return to_batch(pa.RecordBatch.from_arrays(arrays, names=list(names)), batch_format, copy=True)


def _array(kind: str, values: Any, types: NumberTypes) -> pa.Array:
    if kind == "nothing" and types.keep_untyped:
        return pa.nulls(len(values))
    if kind in ("number", "nothing"):  # JSON has no NaN: what numpy makes one of was null
        return pa.array(np.array(values, types.other), from_pandas=True)
    if kind == "int":
        return pa.array(np.array(values, types.whole))
    if kind == "tensor":
        return tensor_array(types.of(values))
    return pa.array(values, pa.bool_() if kind == "bool" else pa.string())


# -- answers ----------------------------------------------------------------------------------

Answer: TypeAlias = dict[str, list[Any]] | pa.RecordBatch
"""Columns of values for JSON, or Arrow rows."""


class Asked(Protocol):
    """What must be known of a request to answer it."""

    @property
    def rows(self) -> RequestRows: ...

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
