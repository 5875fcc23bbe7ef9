"""The kinds of data that predictors take and give, and the ways between them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.air.constants import TENSOR_COLUMN_NAME
from paceline.air.errors import ConfigError, DataError
from paceline.data.dataset_base import DatasetBase
from paceline.data.formats import from_batch, to_batch
from paceline.train.predictor import PREDICTIONS, array_or_columns

if TYPE_CHECKING:
    from paceline.data.preprocessor import Preprocessor
    from paceline.train.predictor import BatchFormat


def kind_of(data: Any, predictor: str) -> BatchFormat:
    """Which of the three kinds `data` is; what is none of them is refused."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        return "pyarrow"
    if isinstance(data, np.ndarray):
        if data.ndim == 0:
            raise ConfigError(f"{predictor}.predict: a single value is no batch; give an array with one row: [value].")
        return "numpy"
    if isinstance(data, Mapping):
        _check_columns(data, predictor)
        return "numpy"
    if _is_frame(data):
        if not data.columns.is_unique:
            twice = data.columns[data.columns.duplicated()][0]
            raise DataError(f"{predictor}.predict: there are several columns named {twice!r}; names must be unique.")
        return "pandas"
    raise ConfigError(f"{predictor}.predict takes {_KINDS}, not {_named(data)}.{_advice(data)}")


_KINDS = "a DataFrame, a numpy array, a dict of numpy arrays, or an Arrow table"


def _check_columns(data: Mapping[Any, Any], predictor: str) -> None:
    if not data:
        raise ConfigError(f"{predictor}.predict: the dict has no columns.")
    for name, values in data.items():
        if not isinstance(values, np.ndarray) or values.ndim == 0:
            raise ConfigError(
                f"{predictor}.predict: column {name!r} of the dict is a {type(values).__name__}: give numpy arrays "
                "with one entry per row."
            )
    lengths = {name: len(values) for name, values in data.items()}
    if len(set(lengths.values())) > 1:
        raise ConfigError(f"{predictor}.predict: columns must have one length, but they have {lengths} rows.")


def _named(data: Any) -> str:
    kind = type(data)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _advice(data: Any) -> str:
    if isinstance(data, DatasetBase):
        return (
            " For a dataset: BatchPredictor.from_checkpoint(checkpoint, PredictorClass).predict(dataset), from"
            " paceline.train.batch_predictor."
        )
    library, name = type(data).__module__.partition(".")[0], type(data).__name__
    if library == "torch":
        return " Give tensor.numpy(), or call a TorchPredictor's call_model(tensor)."
    if library == "pandas" and name == "Series":
        return " Give series.to_frame() for one column, series.to_frame().T for one row."
    if isinstance(data, list | tuple):
        return " Rows become a DataFrame by pandas.DataFrame(rows), numbers an array by numpy.array(values)."
    return ""


def _is_frame(data: Any) -> bool:
    pandas = sys.modules.get("pandas")  # who has a frame has loaded pandas
    return pandas is not None and isinstance(data, pandas.DataFrame)


def rows_of(data: Any) -> int:
    """The number of rows of a batch of any kind."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        return int(data.num_rows)
    return len(next(iter(data.values()))) if isinstance(data, Mapping) else len(data)


def preprocessed(data: Any, preprocessor: Preprocessor) -> Any:
    """The data as the model saw its training data. A label that is not there is not asked for."""
    needed = without_absent_labels(preprocessor, names_of(data))
    if needed is None:
        return data
    try:
        prepared = needed.transform_batch(with_text_names(data))
    except DataError as error:
        if not isinstance(data, np.ndarray):
            raise
        raise DataError(
            f"{error} A bare array is the column {TENSOR_COLUMN_NAME!r} for {type(preprocessor).__name__}: to name its "
            'columns, give a dict of arrays by column, {"x": array}, or a DataFrame.'
        ) from error
    if (made := rows_of(prepared)) != (given := rows_of(data)):
        raise DataError(
            f"{type(preprocessor).__name__} made {made} rows of {given}: predictions would not belong to the given "
            "rows any more. Leave rows out before they are predicted; of a dataset: dataset.filter(...)"
        )
    return prepared


def names_of(data: Any) -> list[str]:
    """The columns of a batch."""
    if isinstance(data, np.ndarray):
        return [TENSOR_COLUMN_NAME]
    if isinstance(data, Mapping):
        return list(map(str, data))
    return list(data.schema.names if isinstance(data, pa.Table | pa.RecordBatch) else data.columns)


def with_text_names(data: Any) -> Any:
    """The batch with texts for the numbers that may be the names of its columns, as pandas gives them."""
    if isinstance(data, Mapping) and not all(isinstance(name, str) for name in data):
        named = {str(name): values for name, values in data.items()}
        if len(named) < len(data):
            raise DataError(f"Several columns have the same name as text: {list(data)}. Rename some of them.")
        return named
    return data


def without_absent_labels(preprocessor: Preprocessor, there: Collection[str]) -> Preprocessor | None:
    """The preprocessor without the encoders of labels that are not among the columns; None: nothing remains.

    Labels are what is to be predicted, so rows rarely have them.
    """
    from paceline.data.preprocessors import Chain, LabelEncoder

    stages = preprocessor._stages() if isinstance(preprocessor, Chain) else [preprocessor]
    kept: list[Preprocessor] = []
    for stage in stages:
        if isinstance(stage, LabelEncoder) and stage.label_column not in there:
            made = [earlier._output_columns() for earlier in kept]
            if not any(columns is None or stage.label_column in columns for columns in made):
                continue
        kept.append(stage)
    if len(kept) == len(stages):
        return preprocessor
    return Chain(*kept) if kept else None


def as_table(data: Any) -> pa.Table:
    return pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data


def converted(data: Any, kind: BatchFormat, predictor: str) -> Any:
    """The data as a batch of another kind, which the model may write to. A bare array is the column "__value__"."""
    columns = {TENSOR_COLUMN_NAME: data} if isinstance(data, np.ndarray) else with_text_names(data)
    return to_batch(from_batch(columns, f"What {predictor} was given"), kind, copy=True)


def answer_like(answer: Any, data: Any, predictor: str) -> Any:
    """What a model returned, as the kind of data that it was asked with. It must have as many rows.

    An array or a dict of arrays is given back as it is to those who asked with either.
    """
    what = f"What {predictor} returned"
    if answer is None:
        raise DataError(f"{predictor} returned None. Does it lack a return statement?")
    as_arrays = isinstance(data, np.ndarray | Mapping)
    if isinstance(answer, np.ndarray):
        _check_answer({PREDICTIONS: answer}, rows_of(data), what)
        if as_arrays:
            return answer
        answer = {PREDICTIONS: answer}
    _check_answer(answer, rows_of(data), what)
    if as_arrays:
        if _is_arrays(answer):
            return dict(answer)
        columns: Any = to_batch(from_batch(answer, what), "numpy", copy=True)
        return columns if isinstance(answer, Mapping) else array_or_columns(columns)
    if isinstance(data, pa.RecordBatch):
        return from_batch(answer, what)
    if isinstance(data, pa.Table):
        return answer if isinstance(answer, pa.Table) else as_table(from_batch(answer, what))
    if _is_frame(answer):
        return answer
    frame: Any = to_batch(from_batch(answer, what), "pandas", copy=True)
    return frame.set_axis(data.index)


def _check_answer(answer: Any, rows: int, what: str) -> None:
    if isinstance(answer, pa.Table | pa.RecordBatch) or _is_frame(answer):
        counts = {"it": rows_of(answer)}
    elif isinstance(answer, Mapping) and answer:
        counts = {f"its column {name!r}": _length(values, f"{what}: {name!r}") for name, values in answer.items()}
    else:
        raise DataError(f"{what} is a {_named(answer)}: it must return {_KINDS}.")
    for part, count in counts.items():
        if count != rows:
            raise DataError(f"{what}: {part} has {count} rows for the {rows} given to it. It must have one for each.")


def _length(values: Any, what: str) -> int:
    if getattr(values, "ndim", 1) == 0 or not hasattr(values, "__len__"):
        raise DataError(f"{what} is a single value, not one per row.")
    return len(values)


def _is_arrays(answer: Any) -> bool:
    return isinstance(answer, Mapping) and all(isinstance(values, np.ndarray) for values in answer.values())
