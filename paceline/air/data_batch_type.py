"""The kinds of batches that datasets and predictors take and give."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Union

from paceline.air.absent import advise

if TYPE_CHECKING:
    import numpy as np
    import pandas
    import pyarrow

DataBatchType = Union["np.ndarray[Any, Any]", "pyarrow.Table", "pandas.DataFrame", "dict[str, np.ndarray[Any, Any]]"]
"""For type hints."""


class BatchFormat(StrEnum):
    """What `batch_format` may be."""

    PANDAS = "pandas"
    NUMPY = "numpy"
    ARROW = "pyarrow"


_CONVERT = 'dataset.iter_batches(batch_format="pandas") and "numpy" give the batches that you need'
_CONVERTERS = ("BlockFormat", "convert_batch_type_to_pandas", "convert_pandas_to_batch_type")
advise(__name__, dict.fromkeys(_CONVERTERS, _CONVERT))
