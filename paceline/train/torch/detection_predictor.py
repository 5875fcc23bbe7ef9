"""TorchDetectionPredictor: models that find any number of objects in each image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError, DataError
from paceline.train.torch.predictor import TorchPredictor

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


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
