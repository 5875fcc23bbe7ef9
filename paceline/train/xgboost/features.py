"""Columns of an Arrow table as XGBoost's features, and what becomes of each type.

Integers stay as they are, other numbers become single floats, as XGBoost computes. Booleans are 0 and 1. Text and
dictionary columns are categories. A column of vectors of one length, such as Concatenator makes, becomes one feature
per element: "x_0", "x_1", ... Nulls and NaN are missing values. Dates, times, durations, lists of several lengths and
structs have no obvious number: they are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import DataError
from paceline.data.column_arrays import contiguous
from paceline.data.tensors import tensor_to_numpy
from paceline.train.trees.task import shard_batches
from paceline.train.xgboost.backend import gathered
from paceline.train.xgboost.loop import COLUMN_KEYWORDS

if TYPE_CHECKING:
    import xgboost
    from numpy.typing import NDArray


def agreed_categories(schemas: Mapping[str, pa.Schema]) -> dict[str, pa.Array]:
    """The categories of each column that is categorical in "train", in these datasets (name -> features).

    All ranks call it. A column without any value has none: it is a column of missing numbers.
    """
    own: dict[str, set[str]] = {}
    known = {field.name for field in schemas[TRAIN_DATASET_KEY] if is_categorical(field.type)}
    for dataset, schema in schemas.items():
        columns = [field.name for field in schema if is_categorical(field.type) and field.name in known]
        if columns:
            for column, values in _values(dataset, columns).items():
                own.setdefault(column, set()).update(values)
    if not own:  # the same on every rank: all know the types of all columns
        return {}
    everyone = gathered({column: sorted(values) for column, values in own.items()})
    together = {column: sorted(set().union(*(each[column] for each in everyone))) for column in sorted(own)}
    return {column: pa.array(values, pa.large_string()) for column, values in together.items() if values}


def _values(dataset: str, columns: Sequence[str]) -> dict[str, set[str]]:
    """What stands in the columns of this rank's rows; nulls are no category."""
    found: dict[str, set[str]] = {column: set() for column in columns}
    for batch in shard_batches(dataset, columns=list(columns)):
        for column in columns:
            values = pc.unique(as_text(contiguous(batch.column(column))))
            found[column].update(values.drop_null().to_pylist())
    return found


_DATES = "make numbers of it first (days since a date, year, weekday)"


def feature_table(columns_of: dict[str, pa.ChunkedArray], where: str, categories: Mapping[str, pa.Array]) -> pa.Table:
    """The features of these columns; `categories` has those of every categorical one.

    The columns are taken out of the dict one by one, so that there are never two copies of all of them.
    """
    names: list[str] = []
    columns: list[pa.Array] = []
    for name in list(columns_of):
        for feature, values in _features(name, columns_of.pop(name), where, categories):
            names.append(feature)
            columns.append(values)
    twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
    if twice:
        raise DataError(f"{where} gives several features of one name: {', '.join(sorted(twice))}. Rename a column.")
    return pa.table(columns, names=names)


def is_plain(data_type: pa.DataType) -> bool:
    """True for numbers."""
    return bool(pt.is_floating(data_type) or pt.is_integer(data_type))


def is_categorical(data_type: pa.DataType) -> bool:
    """True for columns whose values are names of categories."""
    return bool(pt.is_dictionary(data_type) or is_text(data_type))


def is_text(data_type: pa.DataType) -> bool:
    return bool(pt.is_string(data_type) or pt.is_large_string(data_type) or pt.is_string_view(data_type))


def as_text(column: pa.Array) -> pa.Array:
    """The values of a categorical column as text; XGBoost names categories by text only."""
    if pt.is_dictionary(column.type):
        return pc.take(pc.cast(column.dictionary, pa.large_string()), column.indices)
    return pc.cast(column, pa.large_string())


def vectors(column: pa.Array, name: str, where: str) -> NDArray[Any] | None:
    """A column of vectors as rows x elements; None for a column of single values."""
    data_type = column.type
    if pt.is_fixed_size_list(data_type):
        shaped = pa.fixed_shape_tensor(data_type.value_type, [data_type.list_size])
        column = pa.ExtensionArray.from_storage(shaped, column)
    elif not isinstance(data_type, pa.FixedShapeTensorType):
        return None
    values = tensor_to_numpy(column, copy=False)
    if values.dtype.kind not in "iufb":
        raise DataError(f"{where}: column {name!r} holds vectors of {data_type}, not of numbers.")
    return values.reshape(len(values), -1) if len(values) else values.reshape(0, _size(column.type))


def _features(
    name: str, chunks: pa.ChunkedArray, where: str, categories: Mapping[str, pa.Array]
) -> Iterator[tuple[str, pa.Array]]:
    data_type = chunks.type
    column = contiguous(chunks)
    matrix = vectors(column, name, where)
    if matrix is not None:
        for index, values in enumerate(matrix.T):
            yield f"{name}_{index}", _plain(pa.array(values))
    elif name in categories:
        yield name, pa.DictionaryArray.from_arrays(codes_of(column, categories[name], name, where), categories[name])
    elif is_categorical(data_type) and column.null_count < len(column):
        raise DataError(f"{where}: column {name!r} holds text, but the model was trained with numbers there.")
    elif is_plain(data_type) or pt.is_boolean(data_type):
        yield name, _plain(column)
    elif pt.is_decimal(data_type):
        yield name, _plain(pc.cast(column, pa.float64()))
    elif column.null_count == len(column):
        yield name, pa.nulls(len(column), pa.float32())
    else:
        advice = _DATES if pt.is_temporal(data_type) else "make numbers or text of it first"
        raise DataError(
            f"{where}: column {name!r} is of type {data_type}, which is no feature for XGBoost: {advice}, in a "
            "preprocessor or with map_batches(), or leave it out with dmatrix_params={dataset: {'ignore': [...]}}."
        )


def _plain(column: pa.Array) -> pa.Array:
    """As XGBoost takes it: it knows no half floats and no bits, and makes single floats of double ones itself."""
    if pt.is_floating(column.type):
        return pc.cast(column, pa.float32())
    return pc.cast(column, pa.int8()) if pt.is_boolean(column.type) else column


def categories_in(model: xgboost.Booster) -> dict[str, pa.Array]:
    """The names of the categories that a model knows, as text, by feature."""
    if "c" not in (model.feature_types or []):
        return {}
    categories = model.get_categories(export_to_arrow=True).to_arrow()
    return {name: as_text(values) for name, values in categories if values is not None}


def codes_of(column: pa.Array, categories: pa.Array, name: str, where: str) -> pa.Array:
    """The place of each value among the categories. One that is none of them is refused, not taken for missing."""
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.int32())
    text = as_text(column)
    codes = pc.index_in(text, value_set=categories)
    if codes.null_count > text.null_count:
        unknown = text.filter(pc.and_(codes.is_null(), text.is_valid()))[0]
        raise DataError(
            f"{where}: column {name!r} has the category {unknown.as_py()!r}, which the model was not trained with. "
            "Make it missing (null), or train with rows that have it."
        )
    return codes


def _size(data_type: pa.FixedShapeTensorType) -> int:
    return int(data_type.storage_type.list_size)


# -- what goes into a matrix beside the features: labels, weights, queries, margins, bounds --------


_PROBABILITIES = ("binary:logistic", "binary:logitraw", "binary:hinge", "reg:logistic")


class RowValues:
    """Takes the columns that are no features out of the rows of a dataset; rows come in order, in one table or several.

    XGBoost wants queries as numbers that never fall, and one weight per query: rows of a query are numbered here as
    they come, whatever the column holds.
    """

    def __init__(self, label_column: str, entries: Mapping[str, Any], where: str, objective: Any = None) -> None:
        self._columns = {"label": label_column, **{name: entries[name] for name in COLUMN_KEYWORDS if name in entries}}
        self._where = where
        self._objective = objective
        self.restart()

    @property
    def names(self) -> set[str]:
        """The columns that are taken."""
        return set(self._columns.values())

    def restart(self) -> None:
        """The rows come once more, from the first one."""
        self._queries = 0
        self._last_query: Any = None

    def of(self, table: pa.Table) -> dict[str, NDArray[Any]]:
        """As keyword arguments of a matrix."""
        missing = [column for column in self._columns.values() if column not in table.column_names]
        if missing:
            raise DataError(
                f"{self._where} has no column {', '.join(map(repr, missing))}; it has {', '.join(table.column_names)}."
            )
        queries = self._columns.get("qid")
        values = {
            name: self._numbers(contiguous(table.column(column)), name, column)
            for name, column in self._columns.items()
            if name != "qid"
        }
        if queries is None:
            return values
        numbers = self._numbered(contiguous(table.column(queries)))
        if "weight" in values:
            values["weight"] = self._per_query(values["weight"], numbers)
        return {**values, "qid": numbers}

    def _numbers(self, column: pa.Array, name: str, column_name: str) -> NDArray[Any]:
        told = f"{self._where}: column {column_name!r} ({'label_column' if name == 'label' else name})"
        if is_categorical(column.type):
            raise DataError(
                f"{told} holds text, not numbers. A LabelEncoder of paceline.data.preprocessors numbers its values."
            )
        if column.null_count:
            raise DataError(f"{told} has {column.null_count:,} missing value(s). Drop those rows with filter().")
        matrix = vectors(column, column_name, self._where)
        if matrix is not None:
            return matrix
        if pt.is_decimal(column.type) or pt.is_boolean(column.type):
            column = pc.cast(column, pa.float64() if pt.is_decimal(column.type) else pa.int8())
        if not (pt.is_integer(column.type) or pt.is_floating(column.type)):
            raise DataError(f"{told} is of type {column.type}, not a number.")
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        if name in ("label", "weight") and not np.isfinite(values).all():
            raise DataError(f"{told} has values that are not finite (NaN or infinity).")
        if name == "weight" and (values < 0).any():
            raise DataError(f"{told} has negative values. Weights are 0 or more.")
        if name == "label" and self._objective in _PROBABILITIES and not ((values >= 0) & (values <= 1)).all():
            raise DataError(
                f"{told} has values from {values.min():g} to {values.max():g}: objective={self._objective!r} takes "
                "those from 0 to 1. A LabelEncoder of paceline.data.preprocessors numbers classes from 0; for more "
                "than two there is objective='multi:softprob'."
            )
        return values

    def _numbered(self, column: pa.Array) -> NDArray[Any]:
        """The query of each row as a number, counted from the first row of this pass."""
        if column.null_count:
            raise DataError(f"{self._where}: column {self._columns['qid']!r} (qid) has missing values.")
        encoded = column if pt.is_dictionary(column.type) else column.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        if not len(codes):
            return np.zeros(0, np.uint32)
        begins = np.diff(codes, prepend=codes[0]) != 0
        begins[0] = self._queries == 0 or column[0].as_py() != self._last_query
        numbers = self._queries - 1 + np.cumsum(begins)
        self._queries, self._last_query = int(numbers[-1]) + 1, column[-1].as_py()
        return numbers.astype(np.uint32)

    def _per_query(self, weights: NDArray[Any], numbers: NDArray[Any]) -> NDArray[Any]:
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        chosen = weights[begins]
        if not np.array_equal(np.repeat(chosen, np.diff([*begins, len(numbers)])), weights):
            raise DataError(
                f"{self._where}: XGBoost weighs whole queries, so all rows of a query need one weight; column "
                f"{self._columns['weight']!r} differs within a query."
            )
        return chosen
