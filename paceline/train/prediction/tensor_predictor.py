"""TensorPredictor: what predictors have in common whose models take and return tensors of their framework."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError, DataError
from paceline.train.predictor import PREDICTIONS, Predictor

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


_THE_ARRAY = "array"
"""What a bare array is called as a column."""


class TensorPredictor(Predictor):
    """Makes tensors of a batch and arrays of the tensors that the model returns; a framework says how.

    An array or a single column is one tensor, several columns are a dict of tensors by name.
    """

    model: Any
    _shown = ("model", "use_gpu")

    def predict(self, data: Any, dtype: Any = None, **kwargs: Any) -> Any:
        """What the model says about each row of `data`; kinds of data as for every predictor.

        `dtype`: the type of the tensors that the model gets, or a dict of types by column; None: as they are.
        """
        return super().predict(data, dtype=dtype, **kwargs)

    def call_model(self, inputs: Any) -> Any:
        """What the model returns for a batch. For a model that is called in another way, or returns something else."""
        return self.model(inputs)

    @abstractmethod
    def _inputs(self, chunk: pa.RecordBatch, dtype: Any) -> Any:
        """What the model is called with."""

    @abstractmethod
    def _is_tensor(self, value: Any) -> bool: ...

    @abstractmethod
    def _to_numpy(self, tensor: Any) -> NDArray[Any]: ...

    def _call(self, inputs: Any) -> Any:
        """`call_model` in the state that a model predicts in."""
        return self.call_model(inputs)

    def _predict_numpy(self, data: Any, dtype: Any = None) -> Any:
        if not isinstance(data, Mapping):
            if isinstance(dtype, Mapping):
                raise ConfigError("dtype is a dict of types by column, but a bare array has no columns: give one type.")
            data = {_THE_ARRAY: data}
        return self._predict_arrow(data, dtype)

    def _predict_arrow(self, data: pa.Table | Mapping[str, Any], dtype: Any = None) -> Any:
        from paceline.data.formats import from_batch

        return self._outputs(from_batch(data, f"What {type(self).__name__} was given"), dtype)

    def _outputs(self, chunk: pa.RecordBatch, dtype: Any) -> dict[str, NDArray[np.generic]]:
        inputs = self._inputs(chunk, dtype)
        try:
            outputs = self._call(inputs)
        except Exception as error:
            raise DataError(_failure(error, inputs)) from error
        return self._columns(outputs)

    def _columns(self, outputs: Any) -> dict[str, NDArray[np.generic]]:
        """What the model returned, by column."""
        if self._is_tensor(outputs):
            outputs = {PREDICTIONS: outputs}
        if not isinstance(outputs, Mapping):
            raise DataError(
                f"The model returned a {type(outputs).__name__}, not a tensor or a dict of tensors. Derive a class "
                f"from {type(self).__name__} and override call_model(inputs) to take what is wanted out of it."
            )
        return {name: self._array(value, name) for name, value in outputs.items()}

    def _array(self, value: Any, name: str) -> NDArray[Any]:
        """Something that the model returned under this name, if it is a tensor."""
        if not self._is_tensor(value):
            raise DataError(
                f"The model returned a {type(value).__name__} as {name!r}: it must be a tensor with a row per row."
            )
        return self._to_numpy(value)


def one_or_all(tensors: dict[str, Any]) -> Any:
    """A single column is given to a model without its name."""
    return next(iter(tensors.values())) if len(tensors) == 1 else tensors


def _failure(error: Exception, inputs: Any) -> str:
    """What the model was called with is what explains most of its errors."""
    if isinstance(inputs, Mapping):
        shown = "{" + ", ".join(f"{name!r}: {_shape(tensor)}" for name, tensor in inputs.items()) + "}"
        hint = (
            " Leave out columns that are no inputs of the model. To give it one tensor of all columns, use "
            "Concatenator (paceline.data.preprocessors) as preprocessor."
        )
    elif isinstance(inputs, list):
        shown, hint = f"a list of {len(inputs)} tensors", ""
    else:
        shown, hint = _shape(inputs), " predict(data, dtype=...) gives it another type."
    reason = " ".join(str(error).split()).rstrip(".")
    return f"The model failed on {shown}: {type(error).__name__}: {reason}.{hint}"


def _shape(tensor: Any) -> str:
    dtype = getattr(tensor.dtype, "name", None) or str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} tensor of shape {tuple(tensor.shape)}"
