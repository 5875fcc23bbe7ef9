"""Features: from the columns of a table to the numbers that LightGBM takes, in training and in prediction alike."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.air import session as session_slot
from paceline.air.errors import DataError
from paceline.data.tensors import tensor_to_numpy
from paceline.train.lightgbm.params import COLUMN_KEYWORDS, GROUP_KEYWORDS
from paceline.train.trees.task import check_not_empty, read_shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paceline.train.trees.task import TreeTask


@dataclass(frozen=True)
class Features:
    """The columns that a model was trained on, and how those that hold no numbers become numbers.

    Text, and columns of Arrow's dictionary type, are categories: their values are numbered. What is no category of
    the training data, and what is missing, is missing for LightGBM. A vector in each row becomes one feature per
    element: "v" becomes "v_0", "v_1", ...
    """

    columns: tuple[str, ...]
    categories: Mapping[str, tuple[Any, ...]]
    widths: Mapping[str, int]
    """The lengths of vectors."""

    @property
    def names(self) -> list[str]:
        """The features of the model."""
        return [name for column in self.columns for name in self._names_of(column)]

    def _names_of(self, column: str) -> list[str]:
        if column in self.widths:
            return [f"{column}_{index}" for index in range(self.widths[column])]
        return [column]

    @property
    def categorical(self) -> list[int]:
        """The positions of those that are categories."""
        return [place for place, name in enumerate(self.names) if name in self.categories]

    def table(self, table: pa.Table, where: str) -> pa.Table:
        """The features as columns of numbers, without a copy where they are numbers."""
        arrays = [array for column in self.columns for array in self._arrays(table, column, where)]
        return pa.Table.from_arrays(arrays, names=self.names)

    def matrix(self, table: pa.Table, where: str) -> NDArray[np.float64]:
        """The features as an array, which LightGBM predicts faster than a table."""
        matrix = np.empty((table.num_rows, len(self.names)), order="F")
        arrays = (array for column in self.columns for array in self._arrays(table, column, where))
        for place, array in enumerate(arrays):
            matrix[:, place] = array.to_numpy()
        return matrix

    def _arrays(self, table: pa.Table, name: str, where: str) -> Iterator[pa.ChunkedArray]:
        if name not in table.schema.names:
            raise DataError(f"{where} has no column {name!r}, which the model was trained on; it has {_list(table)}.")
        column = table.column(name)
        if name in self.categories and column.null_count == len(column):
            yield pa.chunked_array([pa.nulls(len(column), pa.int32())])  # nothing has no type to compare
        elif name in self.categories:
            yield _codes(column, self.categories[name], f"{where}, column {name!r}")
        elif name in self.widths:
            yield from _elements(column, self.widths[name], f"{where}, column {name!r}")
        else:
            yield numbers(column, f"{where}, column {name!r}")

    def to_json(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "categories": dict(self.categories), "widths": dict(self.widths)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Features:
        categories = {column: tuple(values) for column, values in stored["categories"].items()}
        return cls(tuple(stored["columns"]), categories, dict(stored["widths"]))


def describe_features(table: pa.Table, left_out: Collection[str], where: str) -> Features:
    """Features of all columns but `left_out`, with the categories that occur in this table; refuses other types."""
    columns = tuple(name for name in table.schema.names if name not in left_out)
    if not columns:
        raise DataError(f"{where} has no features: there is no column besides {', '.join(sorted(left_out))}.")
    categories: dict[str, tuple[Any, ...]] = {}
    widths: dict[str, int] = {}
    for name in columns:
        column = table.column(name)
        if is_category(column.type):
            categories[name] = _values(column, f"{where}, column {name!r}")
        elif (width := _width(column.type)) is not None:
            widths[name] = width
        else:
            numbers(column.slice(0, 0), f"{where}, column {name!r}")
    return Features(columns, categories, widths)


def spread_vectors(table: pa.Table, where: str) -> pa.Table:
    """Columns of vectors as a column for each element, named as in training."""
    columns: dict[str, pa.ChunkedArray] = {}
    for field in table.schema:
        if is_vector(field.type):
            one = table.select([field.name])
            spread = describe_features(one, (), where).table(one, where)
            columns |= dict(zip(spread.column_names, spread.columns, strict=True))
        else:
            columns[field.name] = table.column(field.name)
    return pa.table(columns)


def is_vector(data_type: pa.DataType) -> bool:
    return _width(data_type) is not None


def is_category(data_type: pa.DataType) -> bool:
    return pa.types.is_dictionary(data_type) or _is_text(data_type)


def numbers(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """A column as numbers of a type that LightGBM takes; it ends the whole process when it is given another."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return column
    if pa.types.is_float16(kind):
        return column.cast(pa.float32())
    if pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return column.cast(pa.float64())
    raise DataError(f"{where} is of type {kind}, which LightGBM cannot take. {_advice(kind)}")


def _advice(kind: pa.DataType) -> str:
    if pa.types.is_temporal(kind):
        return "Turn it into a number that means something, such as the day of the week or the seconds since a date."
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "Vectors must have one length: give the column the type of a fixed-size list, or a tensor's."
    if _is_text(kind):
        return "Turn it into numbers, for example with a LabelEncoder."
    return "Turn it into numbers, or leave it out: dmatrix_params={'train': {'ignore': ['column']}}."


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _value_type(kind: pa.DataType) -> pa.DataType:
    """Of categories, as they are compared: text is text, however it is laid out."""
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.large_string() if _is_text(value) else value


def _codes(column: pa.ChunkedArray, categories: tuple[Any, ...], where: str) -> pa.ChunkedArray:
    """The place of each value among the categories of the training; null where it is none of them."""
    try:
        values = pa.array(categories, type=_value_type(column.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        shown = ", ".join(repr(value) for value in categories[:3])
        raise DataError(
            f"{where} is of type {column.type}, and the model was trained on categories there: {shown}, ... Give it "
            "values of that type."
        ) from None
    return pc.index_in(_decoded(column), value_set=values)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(_value_type(column.type))


def _values(column: pa.ChunkedArray, where: str) -> tuple[Any, ...]:
    kind = _value_type(column.type)
    if not (_is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DataError(f"{where} has categories of type {kind}: text and whole numbers can be categories.")
    return tuple(sorted(pc.unique(_decoded(column)).drop_null().to_pylist()))


def _width(kind: pa.DataType) -> int | None:
    """How many features a column of vectors or arrays makes; None for any other column."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return int(kind.storage_type.list_size)
    return int(kind.list_size) if pa.types.is_fixed_size_list(kind) else None


def _elements(column: pa.ChunkedArray, width: int, where: str) -> Iterator[pa.ChunkedArray]:
    rows = vectors(column, where)
    if rows.shape[1] != width:
        raise DataError(f"{where} has vectors of {rows.shape[1]} elements; the model was trained on {width}.")
    for index in range(width):
        yield pa.chunked_array([pa.array(np.ascontiguousarray(rows[:, index]))])


def vectors(column: pa.ChunkedArray, where: str) -> NDArray[Any]:
    """A column of vectors as an array with a row for each; missing ones are NaN."""
    width = _width(column.type)
    if width is None:
        raise DataError(f"{where} is of type {column.type}, which is none of vectors of one length.")
    chunks = []
    for chunk in column.chunks:
        if not isinstance(chunk, pa.ExtensionArray):
            chunk = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(chunk.type.value_type, [width]), chunk)
        chunks.append(tensor_to_numpy(chunk, copy=False).reshape(len(chunk), width))
    if any(chunk.dtype.kind not in "biuf" for chunk in chunks):
        raise DataError(f"{where} has elements that are no numbers: {column.type}.")
    return np.concatenate(chunks) if chunks else np.empty((0, width))


def _list(table: pa.Table) -> str:
    return ", ".join(table.schema.names)


# -- a worker's rows of a dataset, with the columns that are no features --------------------------


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
