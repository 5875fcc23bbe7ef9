"""Functions as preprocessors: BatchMapper calls the user's own, TorchVisionPreprocessor one of torchvision."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from paceline.air.checks import check_bool, whole_number
from paceline.air.errors import ConfigError, DataError
from paceline.data.column_arrays import column_array
from paceline.data.formats import check_batch_format, from_batch, to_batch, to_numpy
from paceline.data.preprocessor import D, Preprocessor
from paceline.data.preprocessors.columns import ColumnPreprocessor, checked_columns, with_columns


class BatchMapper(Preprocessor):
    """Replaces each batch by what `fn(batch)` returns.

    A batch is a dict of numpy arrays, a DataFrame or an Arrow table (`batch_format` "numpy", "pandas" or
    "pyarrow"). Of a dataset, a batch has `batch_size` rows (4096; None: a whole block); `transform_batch` gives
    `fn` what it got, also a bare numpy array. The function is stored in checkpoints by pickle.
    """

    _is_fittable = False
    _row_local = False

    def __init__(
        self,
        fn: Callable[[Any], Any],
        batch_format: str | None,
        batch_size: int | Literal["default"] | None = "default",
    ) -> None:
        if isinstance(fn, type) or not callable(fn):
            raise ConfigError(f"BatchMapper: fn is {fn!r}: give a function that takes a batch and returns one.")
        if batch_size not in ("default", None):
            batch_size = whole_number(batch_size, "batch_size", least=1, advice="None means whole blocks.")
        self.fn = fn
        self.batch_format = check_batch_format(batch_format)
        self.batch_size = batch_size

    def transform(self, ds: D) -> D:
        """The dataset with the function applied; lazily, when its rows are read."""
        dataset: Any = ds
        transformed: Any = dataset.map_batches(self.fn, batch_size=self.batch_size, batch_format=self.batch_format)
        self._transformed = weakref.ref(transformed)
        result: D = transformed
        return result

    def _transform_array(self, array: np.ndarray) -> Any:
        return self.fn(array.copy()) if self.batch_format in ("numpy", "default") else super()._transform_array(array)

    def _transform_chunk(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        name = getattr(self.fn, "__qualname__", type(self.fn).__qualname__)
        result = self.fn(to_batch(chunk, self.batch_format, copy=True))
        return from_batch(result, f"What BatchMapper's function {name} returned")


class TorchVisionPreprocessor(ColumnPreprocessor):
    """Applies `transform` to each image of the columns, or with `batched=True` to all images of a batch at once.

    The transform gets a torch tensor, or a numpy array if it refuses tensors by TypeError (as ToTensor does), and
    returns a tensor or an array; images may come out in different sizes. Results go to `output_columns`, one
    for each of `columns`, or replace these. The transform is stored in checkpoints by pickle.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: list[str],
        transform: Callable[[Any], Any],
        output_columns: list[str] | None = None,
        batched: bool = False,
    ) -> None:
        check_bool(batched, "batched")
        if not callable(transform):
            raise ConfigError(f"TorchVisionPreprocessor: transform is {transform!r}: give a function or a module.")
        super().__init__(columns)
        if output_columns is not None:
            output_columns = checked_columns(output_columns, "TorchVisionPreprocessor")
            if len(output_columns) != len(self.columns):
                raise ConfigError(
                    f"TorchVisionPreprocessor: output_columns {output_columns} must be as many as {self.columns}."
                )
        self.torchvision_transform = transform
        self.output_columns = output_columns
        self.batched = batched

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        results = {}
        for column, output in zip(self.columns, self.output_columns or self.columns, strict=True):
            images = to_numpy(self._of(chunk, column), copy=True)
            if self.batched:
                transformed = self._transformed_images(images, column)
                if len(transformed) != len(images):
                    raise DataError(
                        f"TorchVisionPreprocessor: the transform made {len(transformed)} images of {len(images)} in "
                        f"column {column!r}. With batched=True it must return one for each."
                    )
                results[output] = column_array(transformed, output, "TorchVisionPreprocessor")
            else:
                cells = [self._transformed_images(image, column) for image in images]
                results[output] = column_array(cells, output, "TorchVisionPreprocessor")
        return with_columns(chunk, results)

    def _transformed_images(self, images: Any, column: str) -> np.ndarray:
        import torch

        if not isinstance(images, np.ndarray) or images.dtype == object:
            raise DataError(
                f"TorchVisionPreprocessor: column {column!r} does not hold an array of numbers in each row"
                + (", or they differ in size: use batched=False." if self.batched else ".")
            )
        try:
            result = self.torchvision_transform(torch.as_tensor(images))
        except TypeError:  # transforms like ToTensor take arrays only
            result = self.torchvision_transform(images)
        if isinstance(result, torch.Tensor):
            return result.detach().cpu().numpy()
        if isinstance(result, np.ndarray):
            return result
        raise DataError(
            f"TorchVisionPreprocessor: the transform returned a {type(result).__name__} for column {column!r}; it must "
            "return a tensor or a numpy array. ToTensor() or PILToTensor() at its end does."
        )

    def _arguments(self) -> dict[str, Any]:
        return {
            "columns": self.columns,
            "transform": self.torchvision_transform,  # `self.transform` is the method
            "output_columns": self.output_columns,
            "batched": self.batched,
        }

    def _output_columns(self) -> tuple[str, ...]:
        return tuple(self.output_columns or self.columns)
