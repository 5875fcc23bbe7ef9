"""TorchPredictor: predictions of a PyTorch model."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from paceline.air.errors import ConfigError, DataError
from paceline.train.prediction.tensor_predictor import TensorPredictor, one_or_all
from paceline.train.predictor import checked_checkpoint
from paceline.train.torch.checkpoint import TorchCheckpoint

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from numpy.typing import NDArray

    from paceline.data.preprocessor import Preprocessor
    from paceline.train.predictor import CheckpointOrPlace

    Inputs: TypeAlias = torch.Tensor | dict[str, torch.Tensor]
    import numpy as np


class TorchPredictor(TensorPredictor):
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
            raise ConfigError(f"TorchPredictor takes a torch.nn.Module as its model, not {type(model).__name__}.")
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

    def _inputs(self, chunk: pa.RecordBatch, dtype: Any) -> Any:
        """What the model is called with: tensors that nobody else refers to, so that it may write to them."""
        from paceline.data.torch_batches import checked_dtypes, torch_columns

        columns = torch_columns(chunk, checked_dtypes(dtype), copy=True)
        tensors = {name: tensor.to(self.device) for name, tensor in columns.items()}
        return one_or_all(tensors)

    def _call(self, inputs: Inputs) -> Any:
        import torch

        with evaluation_mode(self.model), torch.inference_mode():
            return self.call_model(inputs)

    def _is_tensor(self, value: Any) -> bool:
        import torch

        return isinstance(value, torch.Tensor)

    def _to_numpy(self, tensor: torch.Tensor) -> NDArray[Any]:
        import torch

        tensor = tensor.detach().cpu()
        array: NDArray[Any] = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()  # numpy has none
        return array


# -- evaluation mode, for as many as predict with a model at the same time -------------------------


@dataclass
class _UnderWay:
    """The predictions of one model."""

    in_training: list[torch.nn.Module]
    """The parts that were in training mode before the first of them."""
    count: int = 0


_models: dict[int, _UnderWay] = {}
"""By the id of the model, which is alive as long as it predicts."""
_lock = threading.Lock()


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Each part of the model gets back the mode that it had, when the last thread that predicts is done."""
    with _lock:
        under_way = _models.get(id(model))
        if under_way is None:
            under_way = _models[id(model)] = _UnderWay([module for module in model.modules() if module.training])
            for module in under_way.in_training:
                module.training = False
        under_way.count += 1
    try:
        yield
    finally:
        with _lock:
            under_way.count -= 1
            if under_way.count == 0:
                for module in under_way.in_training:
                    module.training = True
                del _models[id(model)]


# -- object detection ------------------------------------------------------------------------------


class TorchDetectionPredictor(TorchPredictor):
    """For models such as those of torchvision.models.detection: a list of images in, a dict of tensors per image out.

    The data is one column of images, which may differ in size. What the model calls "boxes", "labels" and "scores" are
    the columns "pred_boxes", "pred_labels" and "pred_scores", with an array per row.
    """

    def _inputs(self, chunk: pa.RecordBatch, dtype: Any) -> Any:
        import torch

        from paceline.data.formats import to_numpy
        from paceline.data.torch_batches import checked_dtypes

        if chunk.num_columns != 1:
            raise ConfigError(
                f"{type(self).__name__} takes one column of images, not {chunk.schema.names}. Choose it by "
                "feature_columns=[...] of BatchPredictor.predict, or give only that column."
            )
        (name,) = chunk.schema.names
        wanted = checked_dtypes(dtype)
        wanted = wanted.get(name) if isinstance(wanted, Mapping) else wanted
        images = to_numpy(chunk.column(0), copy=True)
        return [torch.as_tensor(image).to(self.device, wanted) for image in images]

    def _columns(self, outputs: Any) -> dict[str, NDArray[np.generic]]:
        import numpy as np

        if not isinstance(outputs, list) or not all(isinstance(found, Mapping) for found in outputs):
            raise DataError(
                f"The model returned a {type(outputs).__name__}, not a list with a dict of tensors per image. For "
                "others there is TorchPredictor."
            )
        columns: dict[str, NDArray[np.generic]] = {}
        for name in outputs[0] if outputs else ():
            columns[f"pred_{name}"] = cells = np.empty(len(outputs), dtype=object)
            for row, found in enumerate(outputs):
                cells[row] = self._array(found[name], name)
        return columns
