"""Predictor: a model from a checkpoint, that predicts batches of whichever kind it is given."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self, TypeAlias

from paceline.air.errors import ConfigError, SerializationError
from paceline.air.util.data_batch_conversion import DataBatchType

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray

    from paceline.air.checkpoint import Checkpoint
    from paceline.data.preprocessor import Preprocessor

    CheckpointOrPlace: TypeAlias = Checkpoint | str | os.PathLike[str]
    Arrays: TypeAlias = NDArray[np.generic] | dict[str, NDArray[np.generic]]
    PredictionData: TypeAlias = pd.DataFrame | Arrays | pa.Table | pa.RecordBatch


BatchFormat = Literal["pandas", "numpy", "pyarrow"]

__all__ = ["DataBatchType", "Predictor", "PredictorNotSerializableException", "prediction_columns"]

PREDICTIONS = "predictions"


class PredictorNotSerializableException(SerializationError, RuntimeError):  # noqa: N818 - the name users know
    """A predictor was to be sent to another process."""


class Predictor(ABC):
    """A model that predicts batches, with the preprocessor that its training data went through.

    One of your own defines `from_checkpoint` and one or more of `_predict_pandas`, `_predict_numpy`
    and `_predict_arrow`. Each gets a batch of that kind and returns one with as many rows; data of another
    kind is converted for it and back. A model that gives one value per row has the column "predictions".
    """

    default_batch_size: ClassVar[int] = 4096
    """How many rows BatchPredictor gives to it at once, unless told otherwise."""

    _preprocessor: Preprocessor | None = None
    _shown: ClassVar[tuple[str, ...]] = ()
    """Attributes that `repr` shows."""

    def __init__(self, preprocessor: Preprocessor | None = None) -> None:
        self._preprocessor = checked_preprocessor(preprocessor)

    @classmethod
    @abstractmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, *args: Any, **kwargs: Any) -> Self:
        """The predictor with the model and the preprocessor of a checkpoint."""

    @classmethod
    def from_pandas_udf(cls, pandas_udf: Callable[[pd.DataFrame], pd.DataFrame]) -> Predictor:
        """A predictor that calls a function: it takes a DataFrame and returns one with as many rows."""
        return PandasFunctionPredictor(pandas_udf)

    def get_preprocessor(self) -> Preprocessor | None:
        """The preprocessor that data goes through before the model; None: it needs none."""
        return self._preprocessor

    def set_preprocessor(self, preprocessor: Preprocessor | None) -> None:
        """Use this preprocessor from now on; None: data goes to the model as it is."""
        self._preprocessor = checked_preprocessor(preprocessor)

    @classmethod
    def preferred_batch_format(cls) -> BatchFormat:
        """The kind of batch that needs no conversion: "pyarrow", else "pandas", else "numpy"."""
        return _kinds_of(cls)[0]

    def predict(self, data: PredictionData, **kwargs: Any) -> Any:
        """What the model says about each row of `data`.

        `data` is a DataFrame, a numpy array, a dict of numpy arrays, or an Arrow table or record batch. It goes through
        the preprocessor first, if there is one. A DataFrame is answered with a DataFrame, Arrow with Arrow. An array or
        a dict of arrays is answered with what `_predict_numpy` returns or, without that method, with the only column
        as an array or several columns as a dict. `kwargs` go to the model.
        """
        from paceline.train.prediction import kinds

        if kwargs and self._model_keywords() is not None:
            self._check_model_keywords(kwargs)
        kinds.kind_of(data, type(self).__name__)
        prepared = data if self._preprocessor is None else kinds.preprocessed(data, self._preprocessor)
        answer = self._answer(prepared, kinds.kind_of(prepared, type(self).__name__), kwargs)
        return kinds.answer_like(answer, data, type(self).__name__)

    def _answer(self, data: Any, kind: BatchFormat, kwargs: dict[str, Any]) -> Any:
        """By the method for this kind of data if there is one; otherwise by another, with the data converted."""
        from paceline.train.prediction import kinds

        there = _kinds_of(type(self))
        chosen = kind if kind in there else there[0]
        if chosen != kind:
            data = kinds.converted(data, chosen, type(self).__name__)
        if chosen == "pyarrow":
            return self._predict_arrow(kinds.as_table(data), **kwargs)
        if chosen == "pandas":
            return self._predict_pandas(data, **kwargs)
        return self._predict_numpy(data, **kwargs)

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, name, None)!r}, " for name in self._shown]
        return f"{type(self).__name__}({''.join(shown)}preprocessor={self._preprocessor!r})"

    # -- for subclasses, which name the arguments that they take -----------------------------

    @classmethod
    def _model_keywords(cls) -> frozenset[str] | None:
        """What may be among the `**kwargs` that a class hands on to its library; None: that is not known."""
        return None

    def _check_model_keywords(self, given: Mapping[str, Any]) -> None:
        """Refuse arguments of `predict` that this very model does not take, as far as can be known beforehand."""
        from paceline.train.prediction.arguments import check_predict_keywords

        check_predict_keywords(type(self), given)

    def _example_row(self) -> dict[str, Any] | None:
        """A row as the model takes it, to be shown to people; None: that is not known."""
        return None

    def _predict_pandas(self, data: pd.DataFrame, *args: Any, **kwargs: Any) -> pd.DataFrame:
        raise NotImplementedError

    def _predict_numpy(self, data: Arrays, *args: Any, **kwargs: Any) -> Arrays:
        raise NotImplementedError

    def _predict_arrow(self, data: pa.Table, *args: Any, **kwargs: Any) -> pa.Table:
        raise NotImplementedError

    # -- a model is made in the process that uses it --------------------------------------

    def __reduce__(self) -> NoReturn:
        raise PredictorNotSerializableException(
            f"{type(self).__name__} holds a model that is ready to be used, and is not sent to other processes or "
            "stored. Send the checkpoint instead and make a predictor there: "
            f"{type(self).__name__}.from_checkpoint(checkpoint). BatchPredictor does so for a whole dataset."
        )


def prediction_columns(predictions: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
    """Predictions by column: "predictions", or "predictions_0", "predictions_1", ... for several values per row."""
    if predictions.ndim == 2 and predictions.shape[1] != 1:
        return {f"{PREDICTIONS}_{index}": column for index, column in enumerate(predictions.T)}
    return {PREDICTIONS: predictions.reshape(-1) if predictions.ndim == 2 else predictions}


def array_or_columns(columns: dict[str, NDArray[np.generic]]) -> Arrays:
    """Predictions by column as numpy code gets them: a single column without its name, several as a dict."""
    return next(iter(columns.values())) if len(columns) == 1 else columns


def _kinds_of(predictor: type[Predictor]) -> list[BatchFormat]:
    """The kinds of batches that a class has a method for, the most direct one first."""
    defined: dict[BatchFormat, bool] = {
        "pyarrow": predictor._predict_arrow is not Predictor._predict_arrow,
        "pandas": predictor._predict_pandas is not Predictor._predict_pandas,
        "numpy": predictor._predict_numpy is not Predictor._predict_numpy,
    }
    there = [kind for kind, is_there in defined.items() if is_there]
    if not there:
        raise NotImplementedError(
            f"{predictor.__name__} defines none of _predict_pandas, _predict_numpy and _predict_arrow: one is needed."
        )
    return there


def checked_checkpoint(given: Any, taker: str) -> Checkpoint:
    """The checkpoint that a user means by it, its path or its URI; `taker` is what it was passed to."""
    from paceline.air.checkpoint import Checkpoint
    from paceline.air.result import Result

    if isinstance(given, Checkpoint):
        return given
    if isinstance(given, Result):
        raise ConfigError(f"Pass the checkpoint of the result: {taker}(result.checkpoint, ...), not {given!r}.")
    if isinstance(given, str | os.PathLike):
        place = os.fspath(given)
        return Checkpoint.from_uri(place) if "://" in place else Checkpoint.from_directory(place)
    raise ConfigError(f"{taker}: checkpoint is {given!r}: give a Checkpoint, or its path or URI.")


def checked_preprocessor(preprocessor: Any) -> Preprocessor | None:
    """`preprocessor` itself, if it is one or None."""
    from paceline.data.preprocessor import Preprocessor

    if preprocessor is not None and not isinstance(preprocessor, Preprocessor):
        raise ConfigError(
            f"preprocessor is {preprocessor!r}: give a paceline.data.preprocessor.Preprocessor, or None. "
            "BatchMapper makes one of a function."
        )
    return preprocessor


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
