"""BatchMapper: a function of the user's as a preprocessor."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from paceline.air.checks import whole_number
from paceline.air.errors import ConfigError
from paceline.data.formats import check_batch_format, from_batch, to_batch
from paceline.data.preprocessor import D, Preprocessor

if TYPE_CHECKING:
    import numpy as np


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
