"""The full path of the tensor types of older programs."""

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

__path__: list[str] = []  # so that advice also reaches "from ... import TensorDtype"
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
