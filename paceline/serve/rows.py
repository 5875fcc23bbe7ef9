"""The rows of one request, in a form in which those of several requests are quickly joined."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.data.formats import concat, to_batch
from paceline.data.tensors import tensor_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paceline.serve.columns import InputColumns
    from paceline.train.predictor import BatchFormat

Column = tuple[str, Any]
"""A kind ("int", "number", "bool", "text", "tensor") and the values: a list, of tensors an array."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a request asks about. Rows with equal keys can be predicted together."""

    count: int
    content: dict[str, Column] | NDArray[Any] | pa.RecordBatch
    """Columns of a JSON body, a matrix without names, or an Arrow body."""
    key: Hashable

    def head(self, most: int) -> Rows:
        """The first rows."""
        if self.count <= most:
            return self
        content = self.content
        if isinstance(content, dict):
            return Rows(most, {name: (kind, values[:most]) for name, (kind, values) in content.items()}, self.key)
        return Rows(most, content.slice(0, most) if isinstance(content, pa.RecordBatch) else content[:most], self.key)


def zeros(columns: InputColumns) -> Rows | None:
    """A row that every model over these columns can predict; None where not all of them are known to be numbers."""
    if not columns.complete or set(columns.kinds.values()) != {"number"}:
        return None
    return Rows(1, {name: ("number", [0.0]) for name in columns.kinds}, None)


def joined(parts: Sequence[Rows], batch_format: BatchFormat) -> Any:
    """The rows of all requests, in this order, as a batch for a predictor."""
    first = parts[0].content
    contents: list[Any] = [part.content for part in parts]
    if isinstance(first, np.ndarray):
        return first if len(parts) == 1 else np.concatenate(contents)
    if isinstance(first, pa.RecordBatch):
        return to_batch(concat(contents), batch_format, copy=True)
    arrays = []
    for name, (kind, values) in first.items():
        if len(parts) > 1:
            pieces = [content[name][1] for content in contents]
            values = np.concatenate(pieces) if kind == "tensor" else [value for piece in pieces for value in piece]
        arrays.append(_array(kind, values))
    return to_batch(pa.RecordBatch.from_arrays(arrays, names=list(first)), batch_format, copy=True)


def _array(kind: str, values: Any) -> pa.Array:
    if kind == "number":  # JSON has no NaN: what numpy makes one of was null
        return pa.array(np.array(values, np.float64), from_pandas=True)
    if kind == "int":
        return pa.array(np.array(values, np.int64))
    if kind == "tensor":
        return tensor_array(values)
    return pa.array(values, pa.bool_() if kind == "bool" else pa.string())
