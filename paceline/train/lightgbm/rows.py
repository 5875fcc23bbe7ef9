"""A worker's rows of a dataset, column by column as LightGBM wants them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.air import session as session_slot
from paceline.air.errors import DataError
from paceline.train.lightgbm.features import is_vector, numbers, vectors
from paceline.train.trees.shard import check_not_empty, read_shard

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from paceline.train.trees.task import TreeTask

GROUP_KEYWORDS = ("group", "query", "qid")
COLUMN_KEYWORDS = ("weight", *GROUP_KEYWORDS, "init_score", "position")


@dataclass(frozen=True)
class ShardRows:
    """The rows, and which of their columns are no features."""

    name: str
    table: pa.Table
    label_column: str
    settings: Mapping[str, Any]
    """What `dmatrix_params` says about the dataset."""

    @property
    def where(self) -> str:
        """For messages."""
        return f"The dataset {self.name!r}"

    @property
    def no_features(self) -> list[str]:
        return list(_columns(self.label_column, self.settings).values())

    @property
    def label(self) -> NDArray[Any]:
        return self._numbers(self.label_column, "label_column")

    @property
    def weight(self) -> NDArray[np.float32] | None:
        """As LightGBM keeps weights: sums of them are to be the same."""
        column = self.settings.get("weight")
        if column is None:
            return None
        values = self._numbers(column, "weight").astype("float32")
        if (values < 0).any():
            raise DataError(f"{self.where}, column {column!r} (weight) has negative values. Weights are 0 or more.")
        return values

    @property
    def group(self) -> NDArray[np.int32] | None:
        """How many rows each query has; those of one query are next to each other."""
        import numpy as np
        import pyarrow.compute as pc

        name = _group_column(self.settings)
        if name is None:
            return None
        column = pc.dictionary_encode(self.table.column(name)).unify_dictionaries()
        codes = np.concatenate([np.empty(0, np.int32), *(chunk.indices.to_numpy() for chunk in column.chunks)])
        starts = np.flatnonzero(np.diff(codes, prepend=-1))
        return np.diff(starts, append=len(codes)).astype(np.int32)

    @property
    def init_score(self) -> NDArray[np.float64] | None:
        """One value per row, or one per class from a column of vectors."""
        name = self.settings.get("init_score")
        if name is None:
            return None
        column = self.table.column(name)
        if is_vector(column.type):
            return vectors(column, f"{self.where}, column {name!r} (init_score)").astype("float64")
        return self._numbers(name, "init_score").astype("float64")

    @property
    def position(self) -> NDArray[np.int32] | None:
        column = self.settings.get("position")
        return None if column is None else self._numbers(column, "position").astype("int32")

    def _numbers(self, column: str, what: str) -> NDArray[Any]:
        """A column in which every row must have a number: LightGBM would take a missing one for 0."""
        import numpy as np
        import pyarrow.compute as pc

        where = f"{self.where}, column {column!r} ({what})"
        values = numbers(self.table.column(column), where)
        missing = pc.sum(pc.is_null(values, nan_is_null=True)).as_py() or 0
        if missing:
            raise DataError(f"{where}: {missing} rows have no value. Filter them out, or fill them in.")
        found: NDArray[Any] = values.to_numpy()
        if found.dtype.kind == "f" and np.isinf(found).any():
            raise DataError(f"{where} has infinite values. Filter those rows out.")
        return found


def check_labels(rows: ShardRows, objective: Any) -> None:
    """Refuse classes that LightGBM would not tell apart: with two, all labels above 0 are one class for it."""
    import numpy as np

    if objective != "binary":
        return
    found = np.unique(rows.label)
    if not np.isin(found, (0, 1)).all() and not np.isin(found, (-1, 1)).all():
        raise DataError(
            f"{rows.where}, column {rows.label_column!r} (label_column) holds {_few(found)}: objective='binary' takes "
            "0 and 1, and would take all values above 0 for one class. A LabelEncoder of paceline.data.preprocessors "
            "numbers classes from 0; for more than two there is objective='multiclass', for probabilities "
            "'cross_entropy'."
        )


def _few(values: NDArray[Any]) -> str:
    return ", ".join(f"{value:g}" for value in values[:5]) + (", ..." if len(values) > 5 else "")


def read_rows(task: TreeTask, name: str) -> ShardRows:
    """This worker's rows, without the columns that are ignored."""
    check_not_empty(name)
    settings = task.matrix_params.get(name, {})
    given = settings.get("ignore", ())
    ignored = {f"ignore={column!r}": column for column in ([given] if isinstance(given, str) else given)}
    there = session_slot.get_dataset_shard(name).schema().names
    for what, column in {**_columns(task.label_column, settings), **ignored}.items():
        if column not in there:
            raise DataError(f"The dataset {name!r} has no column {column!r} ({what}); it has {', '.join(there)}.")
    wanted = [column for column in there if column not in ignored.values()]
    table = read_shard(name, query_column=_group_column(settings), columns=wanted)
    return ShardRows(name, table, task.label_column, settings)


def _columns(label_column: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The columns that are no features, by what they are."""
    return {"label_column": label_column, **{key: settings[key] for key in COLUMN_KEYWORDS if key in settings}}


def _group_column(settings: Mapping[str, Any]) -> str | None:
    return next((settings[key] for key in GROUP_KEYWORDS if key in settings), None)
