"""Preprocessor: what learns from one dataset (`fit`) and is then applied to others, to batches, and by predictors."""

from __future__ import annotations

import copy
import inspect
import reprlib
import weakref
from abc import ABC
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self, TypeVar

from paceline.air.checks import warn_at_users_line
from paceline.air.constants import TENSOR_COLUMN_NAME
from paceline.air.errors import ConfigError, DataError, PacelineError
from paceline.air.words import counted
from paceline.data.dataset_base import DatasetBase
from paceline.data.plan import BlockPlace, Operation

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa

    from paceline.data.block import Chunk
    from paceline.data.statistics import Statistic


D = TypeVar("D", bound=DatasetBase)

__all__ = ["Preprocessor", "PreprocessorNotFittedException"]

BUILT_IN = "paceline.data.preprocessors"


class PreprocessorNotFittedException(PacelineError, RuntimeError):  # noqa: N818 - the name users know
    """A preprocessor was to transform something before it was fitted."""


class Preprocessor(ABC):
    """Learns from a dataset and transforms others in the same way.

    A preprocessor of your own defines `_transform_pandas(df)` or `_transform_numpy(batch)`, which gets
    some rows and returns as many, and, if it learns, `_fit(dataset)`, which stores what it learnt in
    attributes that end in an underscore (`self.stats_ = dataset.aggregate(...)`) and returns self. One that
    learns nothing sets `_is_fittable = False`.

    It is stored in checkpoints by pickle, as its code is yours; the built-in ones are stored as plain data.
    """

    class FitStatus(StrEnum):
        """Whether a preprocessor can transform yet."""

        NOT_FITTABLE = "NOT_FITTABLE"
        """It learns nothing: it can transform at once."""
        NOT_FITTED = "NOT_FITTED"
        PARTIALLY_FITTED = "PARTIALLY_FITTED"
        """Some members of a chain are fitted."""
        FITTED = "FITTED"

    _is_fittable: bool = True
    _row_local: bool = True
    """A row's result depends on this row alone, so that any portion of a dataset can be transformed by itself."""

    stats_: dict[str, Any]
    """What was learnt, by names like "mean(x)"; there once fitted."""

    # -- use ------------------------------------------------------------------------------

    def fit(self, ds: DatasetBase) -> Self:
        """Learn from all rows of a dataset; returns self. What was learnt before is replaced."""
        _check_dataset(ds, f"{type(self).__name__}.fit")
        status = self.fit_status()
        if status is FitStatus.NOT_FITTABLE:
            return self
        if status is not FitStatus.NOT_FITTED:
            warn_at_users_line(f"{type(self).__name__} was fitted before; what it learnt is replaced.")
        self._fit(ds)
        self._fitted = True
        return self

    def transform(self, ds: D) -> D:
        """The dataset with this preprocessor applied; lazily, when its rows are read."""
        _check_dataset(ds, f"{type(self).__name__}.transform")
        self._check_fitted("transform")
        # Of its own, so that fitting this one anew does not change what was transformed before.
        transformed = ds._then(Preprocess(self._snapshot()))
        self._transformed = weakref.ref(transformed)
        return transformed

    def fit_transform(self, ds: D) -> D:
        """fit, then transform, on the same dataset."""
        return self.fit(ds).transform(ds)

    def transform_batch(self, data: Any) -> Any:
        """One batch transformed: a dict of arrays, a DataFrame or an Arrow table; the same kind comes out.

        A bare array is given to `_transform_numpy` of your own as it is. For all others it is the column "__value__".
        """
        self._check_fitted("transform_batch")
        import numpy as np
        import pyarrow as pa

        from paceline.data.formats import from_batch, to_batch

        what = f"The batch for {type(self).__name__}"
        if isinstance(data, np.ndarray):
            return self._transform_array(data)
        if isinstance(data, pa.RecordBatch):
            return self._transform_chunk(data)
        if isinstance(data, pa.Table | Mapping):
            chunk = self._transform_chunk(from_batch(data, what))
            return to_batch(chunk, "pyarrow" if isinstance(data, pa.Table) else "numpy", copy=True)
        import pandas as pd

        if not isinstance(data, pd.DataFrame):
            raise ConfigError(
                f"{what} is a {type(data).__name__}: give a dict of arrays, an array, a DataFrame, or an Arrow table."
            )
        result: Any = to_batch(self._transform_chunk(from_batch(data, what)), "pandas", copy=True)
        return result.set_axis(data.index) if len(result) == len(data) else result

    def fit_status(self) -> FitStatus:
        """Whether it learnt already what it needs."""
        if not self._is_fittable:
            return FitStatus.NOT_FITTABLE
        learnt = (name for name in vars(self) if name.endswith("_") and not name.startswith("_"))
        return FitStatus.FITTED if getattr(self, "_fitted", False) or any(learnt) else FitStatus.NOT_FITTED

    @classmethod
    def preferred_batch_format(cls) -> str:
        """The kind of batch that it transforms: "numpy" or "pandas" (those that are built in take Arrow, too)."""
        defines_pandas = cls._transform_pandas is not Preprocessor._transform_pandas
        return "numpy" if cls._transform_numpy is not Preprocessor._transform_numpy or not defines_pandas else "pandas"

    def transform_stats(self) -> str | None:
        """Where time went in the dataset that `transform` gave last; None if that is gone."""
        last = getattr(self, "_transformed", None)
        dataset = last() if last is not None else None
        return dataset.stats() if dataset is not None else None

    # -- for subclasses -------------------------------------------------------------------

    def _fit(self, ds: Any) -> Preprocessor:
        """Learn. Built-in ones say what they need by `_statistics` instead, so that several share one pass."""
        from paceline.data.statistics import compute

        self._learn(compute(ds.plan, self._statistics(), type(self).__name__))
        return self

    def _statistics(self) -> list[Statistic]:
        """What must be known of a dataset to fit."""
        raise NotImplementedError(
            f"{type(self).__name__} defines no _fit(dataset). Set _is_fittable = False if it learns nothing."
        )

    def _learn(self, values: dict[Statistic, Any]) -> None:
        """Set `stats_` from the values of `_statistics`."""
        raise NotImplementedError

    def _input_columns(self) -> tuple[str, ...] | None:
        """The columns it looks at, in fitting and transforming; None: perhaps all."""
        return None

    def _output_columns(self) -> tuple[str, ...] | None:
        """The columns that it changes, adds or removes; None: perhaps any."""
        return None

    def _transform_arrow(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError

    def _transform_numpy(self, np_data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _transform_pandas(self, df: pd.DataFrame) -> pd.DataFrame:
        raise NotImplementedError

    # -- for the pipeline -----------------------------------------------------------------

    @classmethod
    def _fits_by_statistics(cls) -> bool:
        """True if `_statistics` and `_learn` are all there is to fitting it."""
        return cls._fit is Preprocessor._fit

    def _runs_user_code(self) -> bool:
        """True if transforming calls functions of the user's: then one thread at a time does it."""
        if not self._is_built_in():
            return True
        for argument in self._arguments().values():
            for part in argument if isinstance(argument, list | tuple) else (argument,):
                if part._runs_user_code() if isinstance(part, Preprocessor) else callable(part):
                    return True
        return False

    def _snapshot(self) -> Self:
        """A copy that fitting this one again does not change."""
        return copy.copy(self)

    def _transform_chunk(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Transform some rows, by the one of the three methods that the class defines."""
        from paceline.data.formats import from_batch, to_batch

        kind, name = type(self), type(self).__name__
        if kind._transform_arrow is not Preprocessor._transform_arrow:
            result = self._transform_arrow(chunk)
        elif kind._transform_numpy is not Preprocessor._transform_numpy:
            batch: Any = to_batch(chunk, "numpy", copy=True)
            result = from_batch(self._transform_numpy(batch), f"{name}._transform_numpy")
        elif kind._transform_pandas is not Preprocessor._transform_pandas:
            frame: Any = to_batch(chunk, "pandas", copy=True)
            result = from_batch(self._transform_pandas(frame), f"{name}._transform_pandas")
        else:
            raise NotImplementedError(f"{name} defines neither _transform_pandas nor _transform_numpy.")
        if self._row_local and result.num_rows != chunk.num_rows:
            raise DataError(
                f"{name} made {counted(result.num_rows, 'row')} of {chunk.num_rows}: a preprocessor keeps the number "
                "of rows. To leave rows out use Dataset.filter or map_batches."
            )
        return result

    def _transform_array(self, array: np.ndarray) -> Any:
        """Transform a bare array; to an array again if that is all that comes out."""
        kind = type(self)
        takes_arrays = kind._transform_numpy is not Preprocessor._transform_numpy and not self._is_built_in()
        if takes_arrays and kind._transform_arrow is Preprocessor._transform_arrow:
            batch: Any = array.copy()
            return self._transform_numpy(batch)
        columns = self.transform_batch({TENSOR_COLUMN_NAME: array})
        return columns[TENSOR_COLUMN_NAME] if list(columns) == [TENSOR_COLUMN_NAME] else columns

    def _check_fitted(self, method: str) -> None:
        if self.fit_status() in (FitStatus.NOT_FITTED, FitStatus.PARTIALLY_FITTED):
            raise PreprocessorNotFittedException(
                f"{type(self).__name__} is not fitted: call fit(dataset) or fit_transform(dataset) before {method}()."
            )

    # -- stored as data -------------------------------------------------------------------

    @property
    def stored_name(self) -> str:
        """The public name of the class whose `from_state` makes this object from its state again."""
        return f"{BUILT_IN}.{type(self).__name__ if self._is_built_in() else 'Preprocessor'}"

    @classmethod
    def _is_built_in(cls) -> bool:
        return cls.__module__.startswith(f"{BUILT_IN}.")

    def to_state(self) -> dict[str, Any]:
        """This object as JSON values; without pickle, but for functions and classes of the user's."""
        from paceline.data import preprocessor_state as states

        if not self._is_built_in():
            return states.pickled(self)
        return {"arguments": states.encode(self._arguments()), "stats": states.encode(getattr(self, "stats_", None))}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Preprocessor:
        """What `to_state` was called on. A pickle in it is loaded: the state must come from a trusted place."""
        from paceline.data import preprocessor_state as states

        if states.is_pickled(state):
            loaded = states.decode(state)
            if not isinstance(loaded, Preprocessor):
                raise DataError(f"The stored state holds a {type(loaded).__name__}, not a preprocessor.")
            return loaded
        preprocessor = cls._from_arguments(states.decode(state["arguments"]))
        if state["stats"] is not None:
            preprocessor.stats_ = states.decode(state["stats"])
        return preprocessor

    def _arguments(self) -> dict[str, Any]:
        """The constructor's arguments; each is kept in an attribute of its name."""
        return {name: getattr(self, name) for name in _parameters(type(self))}

    @classmethod
    def _from_arguments(cls, arguments: dict[str, Any]) -> Self:
        return cls(**arguments)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_transformed"}

    def __repr__(self) -> str:
        kind = type(self)
        shown = [
            f"{name}={_short(value)}"
            for name, value in vars(self).items()
            if name in _parameters(kind) and not _is_default(value, _parameters(kind)[name])
        ]
        if hasattr(self, "stats_"):
            shown.append(f"stats={_short(self.stats_)}")
        return f"{kind.__name__}({', '.join(shown)})"


FitStatus = Preprocessor.FitStatus


def _parameters(kind: type) -> Mapping[str, inspect.Parameter]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    given = inspect.signature(kind).parameters
    return {name: parameter for name, parameter in given.items() if parameter.kind not in kinds}


def _is_default(value: Any, parameter: inspect.Parameter) -> bool:
    return type(value) is type(parameter.default) and bool(value == parameter.default)


def _short(value: Any) -> str:
    """The text of a value, with the middle of long collections left out."""
    text = repr(value)
    return text if len(text) <= 400 else reprlib.repr(value)


def _check_dataset(ds: Any, method: str) -> None:
    if not isinstance(ds, DatasetBase):
        raise ConfigError(
            f"{method} takes a Dataset, not {type(ds).__name__}. paceline.data.from_pandas, from_numpy, from_arrow "
            "and from_items make one; transform_batch takes a single batch."
        )


class Preprocess(Operation):
    """A preprocessor that does not treat each row by itself promises nothing about their number either."""

    keeps_memory_apart = False

    def __init__(self, preprocessor: Any) -> None:
        self.preprocessor = preprocessor
        self.keeps_row_count = self.row_local = bool(preprocessor._row_local)
        self.native = not preprocessor._runs_user_code()

    @property
    def label(self) -> str:
        return type(self.preprocessor).__name__

    def input_columns(self, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        needed, made = self.preprocessor._input_columns(), self.preprocessor._output_columns()
        if wanted is None or needed is None or made is None:
            return None
        return tuple(dict.fromkeys((*(name for name in wanted if name not in made), *needed)))

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        """By transforming no rows, where the code is ours; what then goes wrong is told when rows come."""
        import pyarrow as pa

        if not self.native:
            return None
        try:
            return self.preprocessor._transform_chunk(pa.RecordBatch.from_pylist([], schema=schema)).schema
        except Exception:
            return None

    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        for chunk in chunks:
            try:
                result: Chunk = self.preprocessor._transform_chunk(chunk)
            except DataError as error:
                raise DataError(f"{place.name}: {error}") from error
            except PacelineError:
                raise
            except Exception as error:
                raise DataError(f"{self.label} failed on {place.name}: {type(error).__name__}: {error}") from error
            yield result
