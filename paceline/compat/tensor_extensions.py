"""The tensor types of older programs, by their names there, as what they are here.

In Arrow tables tensors of one shape are `pyarrow.fixed_shape_tensor`, and others a type of our own; in pandas frames
they are object columns of numpy arrays. The classes below make these, and stand for them in isinstance().
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.air.absent import advise
from paceline.air.errors import ConfigError
from paceline.data.tensors import RaggedTensorType, ragged_array, tensor_array

__all__ = [
    "ArrowTensorArray",
    "ArrowTensorType",
    "ArrowVariableShapedTensorArray",
    "ArrowVariableShapedTensorType",
    "TensorArray",
    "TensorArrayElement",
]

TensorArrayElement = np.ndarray
"""A cell of a tensor column is an array."""

_ADVICE = {
    "TensorDtype": "a tensor column of a DataFrame has the dtype object, and each of its cells is a numpy array",
    "column_needs_tensor_extension": "columns of arrays become tensors by themselves",
}


class _StandsFor(type):
    """For isinstance(): the class that is in use here takes the place of the old one."""

    in_use: tuple[type, ...]

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.in_use)


class ArrowTensorType(metaclass=_StandsFor):
    """Tensors of one shape: ``ArrowTensorType(shape, dtype)`` is ``pyarrow.fixed_shape_tensor(dtype, shape)``."""

    in_use = (pa.FixedShapeTensorType,)

    def __new__(cls, shape: Sequence[int], dtype: Any) -> Any:
        return pa.fixed_shape_tensor(_arrow_type(dtype), list(shape))


class ArrowVariableShapedTensorType(metaclass=_StandsFor):
    """Tensors of several shapes; the number of dimensions is not part of the type here."""

    in_use = (RaggedTensorType,)

    def __new__(cls, dtype: Any, ndim: int) -> Any:
        return RaggedTensorType(_arrow_type(dtype))


class ArrowTensorArray(metaclass=_StandsFor):
    """An Arrow array of tensors of one shape."""

    in_use = (pa.FixedShapeTensorArray,)

    @staticmethod
    def from_numpy(arr: Any, column_name: str | None = None) -> Any:
        """One tensor for each entry of the first dimension; arrays of several shapes make a ragged column."""
        if not isinstance(arr, np.ndarray) or arr.dtype == object:
            cells = [np.asarray(cell) for cell in arr]
            if len({cell.shape for cell in cells}) != 1:
                return ragged_array(cells)
            arr = np.stack(cells)
        return tensor_array(arr) if arr.ndim > 1 else pa.array(arr)


class ArrowVariableShapedTensorArray(metaclass=_StandsFor):
    """An Arrow array of tensors of several shapes."""

    in_use = (pa.ExtensionArray,)

    @staticmethod
    def from_numpy(arr: Any) -> Any:
        """One tensor for each entry."""
        return ragged_array([np.asarray(cell) for cell in arr])


class TensorArray(np.ndarray):
    """A column of arrays for a pandas frame: ``frame["image"] = TensorArray(images)``."""

    def __new__(cls, values: Any) -> TensorArray:
        cells = np.empty(len(values), dtype=object).view(cls)
        for row, cell in enumerate(values):
            cells[row] = np.asarray(cell)
        return cells

    def to_numpy(self) -> np.ndarray:
        """All cells as one array, if they have one shape."""
        shapes = {cell.shape for cell in self}
        if len(shapes) > 1:
            raise ConfigError(f"TensorArray: cells of the shapes {sorted(shapes)} do not make one array.")
        return np.stack(list(self))


def _arrow_type(dtype: Any) -> pa.DataType:
    return dtype if isinstance(dtype, pa.DataType) else pa.from_numpy_dtype(np.dtype(dtype))


advise(__name__, _ADVICE)
