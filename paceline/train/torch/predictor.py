"""TorchPredictor: predictions of a PyTorch model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from paceline.air.errors import ConfigError, DataError
from paceline.train.predictor import PREDICTIONS, Predictor, checked_checkpoint
from paceline.train.torch.checkpoint import TorchCheckpoint
from paceline.train.torch.evaluation_mode import evaluation_mode

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import torch
    from numpy.typing import NDArray

    from paceline.data.preprocessor import Preprocessor
    from paceline.train.predictor import CheckpointOrPlace

    Inputs: TypeAlias = torch.Tensor | dict[str, torch.Tensor]

_THE_ARRAY = "array"
"""What a bare array is called as a column."""


class TorchPredictor(Predictor):
    """Gives batches to a model as tensors.

    An array or a single column is one tensor, with a row of the data per row; several columns are a dict of tensors
    by name. To have them in one tensor, use Concatenator as preprocessor. The model returns a
    tensor, which is the column "predictions", or a dict of tensors, one column each.

    While it predicts, the model is in evaluation mode and gradients are off; afterwards its mode is as before.
    """

    def __init__(self, model: torch.nn.Module, preprocessor: Preprocessor | None = None, use_gpu: bool = False) -> None:
        """With `use_gpu`, the model is moved to the first GPU."""
        import torch

        from paceline.train.torch.accelerator import unwrap

        if not isinstance(model, torch.nn.Module):
            raise ConfigError(f"TorchPredictor takes a torch.nn.Module as its model, not {_name(model)}.")
        if use_gpu and not torch.cuda.is_available():
            raise ConfigError("use_gpu=True, but PyTorch sees no GPU here. Leave it out to predict on the CPU.")
        super().__init__(preprocessor)
        self.use_gpu = use_gpu
        self.device = torch.device("cuda", 0) if use_gpu else torch.device("cpu")
        self.model = unwrap(model).to(self.device)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: CheckpointOrPlace, model: torch.nn.Module | None = None, use_gpu: bool = False
    ) -> Self:
        """From a TorchCheckpoint, its path or its URI.

        Where that holds weights only, they are loaded into `model`, which must be given.
        """
        checkpoint = checked_checkpoint(checkpoint, f"{cls.__name__}.from_checkpoint")
        torch_checkpoint = TorchCheckpoint.from_checkpoint(checkpoint)
        return cls(torch_checkpoint.get_model(model), torch_checkpoint.get_preprocessor(), use_gpu)

    def predict(self, data: Any, dtype: Any = None, **kwargs: Any) -> Any:
        """What the model says about each row of `data`; kinds of data as for every predictor.

        `dtype`: the type of the tensors that the model gets, or a dict of types by column; None: as they are.
        """
        return super().predict(data, dtype=dtype, **kwargs)

    def call_model(self, inputs: Inputs) -> torch.Tensor | dict[str, torch.Tensor]:
        """What the model returns for a batch. For a model that is called in another way, or returns something else."""
        outputs: torch.Tensor | dict[str, torch.Tensor] = self.model(inputs)
        return outputs

    def _predict_numpy(self, data: Any, dtype: Any = None) -> Any:
        from paceline.data.formats import from_batch

        if isinstance(data, Mapping):
            return self._outputs(from_batch(data, f"What {type(self).__name__} was given"), dtype)
        if isinstance(dtype, Mapping):
            raise ConfigError("dtype is a dict of types by column, but a bare array has no columns: give one type.")
        return self._outputs(from_batch({_THE_ARRAY: data}, f"What {type(self).__name__} was given"), dtype)

    def _predict_arrow(self, data: pa.Table, dtype: Any = None) -> Any:
        from paceline.data.formats import from_batch

        return self._outputs(from_batch(data, f"What {type(self).__name__} was given"), dtype)

    def _outputs(self, chunk: pa.RecordBatch, dtype: Any) -> dict[str, NDArray[np.generic]]:
        import torch

        inputs = self._inputs(chunk, dtype)
        with evaluation_mode(self.model), torch.inference_mode():
            try:
                outputs = self.call_model(inputs)
            except Exception as error:
                raise DataError(_failure(error, inputs)) from error
        return self._columns(outputs)

    def _inputs(self, chunk: pa.RecordBatch, dtype: Any) -> Any:
        """What the model is called with: tensors that nobody else refers to, so that it may write to them."""
        from paceline.data.torch_batches import checked_dtypes, torch_columns

        columns = torch_columns(chunk, checked_dtypes(dtype), copy=True)
        tensors = {name: tensor.to(self.device) for name, tensor in columns.items()}
        return next(iter(tensors.values())) if len(tensors) == 1 else tensors

    def _columns(self, outputs: Any) -> dict[str, NDArray[np.generic]]:
        """What the model returned, by column."""
        import torch

        if isinstance(outputs, torch.Tensor):
            outputs = {PREDICTIONS: outputs}
        if not isinstance(outputs, Mapping):
            raise DataError(
                f"The model returned a {_name(outputs)}, not a tensor or a dict of tensors. Derive a class from "
                f"{type(self).__name__} and override call_model(inputs) to take what is wanted out of it."
            )
        return {name: to_numpy(values, name) for name, values in outputs.items()}


def to_numpy(values: Any, name: str) -> NDArray[Any]:
    """A tensor that the model returned, as an array."""
    import torch

    if not isinstance(values, torch.Tensor):
        raise DataError(f"The model returned a {_name(values)} as {name!r}: it must be a tensor with a row per row.")
    values = values.detach().cpu()
    array: NDArray[Any] = (values.float() if values.dtype is torch.bfloat16 else values).numpy()  # numpy has none
    return array


def _failure(error: Exception, inputs: Any) -> str:
    """What the model was called with is what explains most of its errors."""
    if isinstance(inputs, Mapping):
        shown = "{" + ", ".join(f"{name!r}: {_shape(tensor)}" for name, tensor in inputs.items()) + "}"
        hint = " To give it one tensor of all columns, use Concatenator (paceline.data.preprocessors) as preprocessor."
    elif isinstance(inputs, list):
        shown, hint = f"a list of {len(inputs)} images", ""
    else:
        shown, hint = _shape(inputs), " predict(data, dtype=...) gives it another type."
    return f"The model failed on {shown}: {type(error).__name__}: {str(error).strip().rstrip('.')}.{hint}"


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} tensor of shape {tuple(tensor.shape)}"


def _name(value: Any) -> str:
    return type(value).__name__
