"""Predictor: a model from a checkpoint, that predicts batches of whichever kind it is given."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self, TypeAlias

from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import near_miss, warn_at_users_line
from paceline.air.data_batch_type import DataBatchType
from paceline.air.errors import ConfigError, DataError, SerializationError
from paceline.air.plugins import plugin

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


def chosen_columns(feature_columns: Any, there: Iterable[Any]) -> list[Any]:
    """The columns that `feature_columns` names, one or several, which must be among those that are there."""
    known = list(there)
    columns = [feature_columns] if isinstance(feature_columns, str) else list(feature_columns)
    for column in columns:
        if column not in known:
            near = difflib.get_close_matches(str(column), map(str, known), n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise DataError(f"feature_columns has {column!r}; the data has the columns {listed(known)}.{meant}")
    return columns


def listed(names: Sequence[Any]) -> str:
    """Names for a message; of many, the first ones."""
    shown = ", ".join(map(str, names[:12]))
    return f"{shown}, ... ({len(names):,} in all)" if len(names) > 12 else shown


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


# -- the keywords of predict(), checked before any row is read: libraries notice a slip late, or never ---


_FIXED = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
_HARDLY_BY_CHANCE = 0.9
"""So alike are names of which one is a slip of the other."""


def check_keywords(name: str, given: Iterable[str], taker: Callable[..., Any]) -> None:
    """Refuse what a function does not take."""
    known, takes_any = keywords_of(taker)
    if not takes_any:
        _refuse_unknown(name, given, known)


def check_predict_keywords(predictor: type[Predictor], given: Mapping[str, Any], others: Sequence[str] = ()) -> None:
    """Refuse what a predictor's `predict` does not take; `others` are arguments that whoever calls it takes himself.

    Where the class hands on any keyword, it may be for the model: what looks like a slip gets a warning then.
    """
    own, model = predict_keywords(predictor)
    name = f"{predictor.__name__}.predict"
    if model is not None:
        _refuse_unknown(name, given, [*own, *model], others)
        return
    for keyword in given:
        near = difflib.get_close_matches(keyword, [*own, *others], n=1, cutoff=_HARDLY_BY_CHANCE)
        if keyword not in own and near:
            warn_at_users_line(f"{name}: {keyword!r} is passed on to the model. Did you mean {near[0]}?")


@functools.cache
def predict_keywords(predictor: type[Predictor]) -> tuple[list[str], list[str] | None]:
    """What the class itself takes, and what its model does beyond that; None: any."""
    predictor.preferred_batch_format()  # refused here if there is no method at all
    own, takes_any = keywords_of(predictor.predict)
    if takes_any:
        of_methods = [
            keywords_of(getattr(predictor, name))
            for name in ("_predict_arrow", "_predict_pandas", "_predict_numpy")
            if getattr(predictor, name) is not getattr(Predictor, name)
        ]
        own += [keyword for keywords, _ in of_methods for keyword in keywords]
        takes_any = any(any_other for _, any_other in of_methods)
    own = [name for name in dict.fromkeys(own) if name not in ("self", "data")]
    if not takes_any:
        return own, []
    model = predictor._model_keywords()
    return own, None if model is None else sorted(model)


def keywords_of(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """The names that a function takes, and whether it takes any others."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # one that is not written in Python
        return [], True
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return [parameter.name for parameter in parameters if parameter.kind not in _FIXED], takes_any


def _refuse_unknown(name: str, given: Iterable[str], known: list[str], others: Sequence[str] = ()) -> None:
    for keyword in given:
        if keyword not in known:
            near = difflib.get_close_matches(keyword, [*known, *others], n=1)
            raise ConfigError(f"{name} has no argument {keyword!r}{near_miss(keyword, near or known)}")


# -- which predictor belongs to a checkpoint, by the class that wrote it ---------------------------


_PREDICTORS = {
    "paceline.train.huggingface.transformers.checkpoint.TransformersCheckpoint": (
        "paceline.train.huggingface.transformers.predictor.TransformersPredictor"
    ),
    "paceline.train.jax.checkpoint.JaxCheckpoint": "paceline.train.jax.predictor.JaxPredictor",
    "paceline.train.lightgbm.checkpoint.LightGBMCheckpoint": "paceline.train.lightgbm.predictor.LightGBMPredictor",
    "paceline.train.lightning.checkpoint.LightningCheckpoint": "paceline.train.lightning.predictor.LightningPredictor",
    "paceline.train.rl.checkpoint.RLCheckpoint": "paceline.train.rl.predictor.RLPredictor",
    "paceline.train.sklearn.checkpoint.SklearnCheckpoint": "paceline.train.sklearn.predictor.SklearnPredictor",
    "paceline.train.tensorflow.checkpoint.TensorflowCheckpoint": (
        "paceline.train.tensorflow.predictor.TensorflowPredictor"
    ),
    "paceline.train.torch.checkpoint.TorchCheckpoint": "paceline.train.torch.predictor.TorchPredictor",
    "paceline.train.xgboost.checkpoint.XGBoostCheckpoint": "paceline.train.xgboost.predictor.XGBoostPredictor",
}
"""A name in a file selects a line of this table, or an entry point of `paceline.predictors` that an installed package
has registered for the class of that name. It never makes anything else be imported."""


def predictor_for(checkpoint: Checkpoint) -> type[Predictor]:
    """The predictor class for a checkpoint of a class that has one, or of a class derived from such a class."""
    found = _predictor_of(checkpoint)
    if found is not None:
        return found
    stored = checkpoint.written_as
    written_as = f", which was saved as a {stored}," if stored is not None else ""
    known = ", ".join(sorted(name.rpartition(".")[2] for name in _PREDICTORS))
    own = next(iter(_of_others([*_names(type(checkpoint)), *([stored] if stored is not None else [])])), None)
    key = f" A package can register one as an entry point of paceline.predictors, with the key {own!r}." if own else ""
    raise ConfigError(
        f"Which predictor belongs to {checkpoint!r}{written_as} is not known: it is not a {known}. Pass the class of "
        f"the predictor, for example TorchPredictor.{key}"
    )


def check_belongs_together(predictor: type[Predictor], checkpoint: Checkpoint) -> None:
    """Refuse one of paceline's predictors for a checkpoint that is known to belong to another one."""
    if not set(_PREDICTORS.values()).intersection(_names(predictor)):
        return
    wanted = _predictor_of(checkpoint)
    if wanted is None or issubclass(predictor, wanted):
        return
    right = wanted.__name__
    raise ConfigError(
        f"{predictor.__name__} cannot predict with {checkpoint!r}: {right} does. Pass {right}, or leave the class out."
    )


def _predictor_of(checkpoint: Checkpoint) -> type[Predictor] | None:
    stored = checkpoint.written_as  # that class may not be loaded here
    names = [name for name in (*_names(type(checkpoint)), stored) if name is not None]
    known = next((_PREDICTORS[name] for name in names if name in _PREDICTORS), None)
    if known is not None:
        module, _, predictor = known.rpartition(".")
        found: type[Predictor] = getattr(importlib.import_module(module), predictor)
        return found
    return next((kind for name in _of_others(names) if (kind := _registered(name)) is not None), None)


def _of_others(names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith(("paceline.", "builtins."))]


def _registered(name: str) -> type[Predictor] | None:
    """The predictor that a package has registered for the checkpoint class of this name."""

    found = plugin("predictors", name)
    if found is None or (isinstance(found, type) and issubclass(found, Predictor)):
        return found
    raise ConfigError(f"{name!r} of paceline.predictors stands for {found!r}, which is not a Predictor class.")


def _names(of: type) -> list[str]:
    """The full names of a class and of those that it is derived from."""
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in of.__mro__]
