"""The tensor types of older programs; new ones use numpy arrays and `pyarrow.fixed_shape_tensor`."""

from __future__ import annotations

from typing import Any

from paceline.air.absent import no_such_name
from paceline.compat.tensor_extensions import (
    ADVICE,
    ArrowTensorArray,
    ArrowTensorType,
    ArrowVariableShapedTensorArray,
    ArrowVariableShapedTensorType,
    TensorArray,
    TensorArrayElement,
)

__all__ = [
    "ArrowTensorArray",
    "ArrowTensorType",
    "ArrowVariableShapedTensorArray",
    "ArrowVariableShapedTensorType",
    "TensorArray",
    "TensorArrayElement",
]


def __getattr__(name: str) -> Any:
    raise no_such_name(__name__, name, ADVICE)
