"""From rows to what estimators take: a frame of features, an array of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from paceline.data.dataset import Dataset


MOST_SHOWN = 12
"""Names of columns in a message."""


@dataclass(frozen=True)
class FeatureRows:
    """A dataset in memory."""

    features: pd.DataFrame
    labels: NDArray[Any] | None
    others: dict[str, NDArray[Any]] = field(default_factory=dict)
    """By argument, the columns that are neither."""


def read_rows(name: str, dataset: Dataset, label_column: str | None, others: Mapping[str, str]) -> FeatureRows:
    """All rows of a dataset. `others` are columns for arguments such as sample_weight; they are no features."""
    frame = dataset.to_pandas(limit=None)
    if not len(frame):
        raise DataError(f"The dataset {name!r} has no rows.")
    wanted = {**({"label_column": label_column} if label_column is not None else {}), **others}
    check_columns(name, list(frame.columns), wanted)
    taken = {argument: column_values(frame[column]) for argument, column in wanted.items()}
    features = spread_vectors(frame.drop(columns=list(set(wanted.values()))))
    if not len(features.columns):
        raise DataError(f"The dataset {name!r} has no column besides {', '.join(wanted.values())}: no features.")
    return FeatureRows(features, taken.pop("label_column", None), taken)


def check_columns(name: str, there: Sequence[str], wanted: Mapping[str, str]) -> None:
    """Refuse names of columns that a dataset does not have; `wanted` is by argument."""
    for argument, column in wanted.items():
        if column not in there:
            raise ConfigError(
                f"{argument}={column!r}: the dataset {name!r} has no such column; it has {', '.join(there)}."
            )


def like_training(features: pd.DataFrame, names: Sequence[str], where: str) -> pd.DataFrame:
    """The columns that the estimator was fitted with, in that order; others are left out."""
    there = set(features.columns)
    missing = [name for name in names if name not in there]
    if missing:
        raise DataError(
            f"{where} lacks {_listed(missing)}, which the estimator was fitted with; it has "
            f"{_listed(list(features.columns))}."
        )
    return features if list(features.columns) == list(names) else features[list(names)]


def _listed(names: Sequence[Any]) -> str:
    shown = ", ".join(map(repr, names[:MOST_SHOWN]))
    return shown if len(names) <= MOST_SHOWN else f"{shown} and {len(names) - MOST_SHOWN} more"


def spread_vectors(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns of vectors, such as Concatenator makes, as one column per element: "v" becomes "v_0", "v_1", ..."""
    import pandas as pd

    vectors = [name for name in frame.columns if _holds_arrays(frame[name])]
    if not vectors:
        return frame
    return pd.concat([_spread(frame[name]) if name in vectors else frame[name] for name in frame.columns], axis=1)


def _spread(column: pd.Series) -> pd.DataFrame:
    import pandas as pd

    values = column_values(column)
    if values.ndim == 1:
        raise DataError(f"The column {column.name!r} holds arrays of different shapes, which cannot be features.")
    matrix = values.reshape(len(values), -1)
    names = [f"{column.name}_{index}" for index in range(matrix.shape[1])]
    return pd.DataFrame(matrix, columns=names, index=column.index)


def column_values(column: pd.Series) -> NDArray[Any]:
    """One column as an array, of two dimensions if it holds vectors of equal length."""
    import numpy as np

    values = np.asarray(column)
    if _holds_arrays(column) and len({np.shape(value) for value in values}) == 1:
        return np.stack(list(values))
    return values


def _holds_arrays(column: pd.Series) -> bool:
    import numpy as np

    return column.dtype == object and len(column) > 0 and isinstance(column.iloc[0], np.ndarray)
