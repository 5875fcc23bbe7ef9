"""A predictor that is a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from paceline.air.errors import ConfigError
from paceline.train.predictor import Predictor

if TYPE_CHECKING:
    import pandas as pd

    from paceline.air.checkpoint import Checkpoint
    from paceline.data.preprocessor import Preprocessor


class PandasFunctionPredictor(Predictor):
    """Calls a function with a DataFrame; the preprocessor, if one is set, is applied before."""

    def __init__(
        self, pandas_udf: Callable[[pd.DataFrame], pd.DataFrame], preprocessor: Preprocessor | None = None
    ) -> None:
        if isinstance(pandas_udf, type) or not callable(pandas_udf):
            raise ConfigError(f"from_pandas_udf takes a function of a DataFrame, not {pandas_udf!r}.")
        super().__init__(preprocessor)
        self._function = pandas_udf

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, *, pandas_udf: Callable[[pd.DataFrame], pd.DataFrame]) -> Self:
        return cls(pandas_udf, checkpoint.get_preprocessor())

    def _predict_pandas(self, data: pd.DataFrame, **kwargs: Any) -> pd.DataFrame:
        return self._function(data, **kwargs)
