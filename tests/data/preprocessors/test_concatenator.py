"""Concatenator puts columns together into vectors of one type, whatever chunk they are in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data.preprocessor import Preprocessor
from paceline.data.preprocessors import Concatenator
from paceline.data.tensors import tensor_array, tensor_to_numpy
from tests.data.preprocessing import dataset


def vectors(table: pa.Table, name: str = "concat_out") -> np.ndarray:
    return tensor_to_numpy(table.column(name).combine_chunks(), copy=False)


def test_all_columns() -> None:
    assert Concatenator().fit_status() is Preprocessor.FitStatus.NOT_FITTABLE
    table = Concatenator().transform(dataset(block_rows=1, a=[1, 2], b=[0.5, 1.5])).to_arrow()
    assert table.schema.names == ["concat_out"]
    np.testing.assert_array_equal(vectors(table), [[1, 0.5], [2, 1.5]])


def test_some_columns_in_the_order_of_the_dataset() -> None:
    ds = dataset(a=[1, 2], label=[0, 1], b=[3, 4], name=["x", "y"])
    table = Concatenator("features", include=["b", "a"]).transform(ds).to_arrow()
    assert table.schema.names == ["label", "name", "features"]
    assert vectors(table, "features").tolist() == [[1, 3], [2, 4]]
    left_out = Concatenator("features", exclude=["label", "name"]).transform(ds).to_arrow()
    assert left_out.equals(table)


@pytest.mark.parametrize(
    ("kinds", "dtype", "expected"),
    [
        (("int64", "int64"), None, "int64"),
        (("int32", "float32"), None, "float64"),
        (("float32", "float32"), None, "float32"),
        (("bool", "uint8"), None, "uint8"),
        (("float64", "int64"), np.float32, "float32"),
        (("float64", "int64"), "float32", "float32"),
        (("int64", "int64"), float, "float64"),
    ],
)
def test_the_type_of_the_vectors(kinds: tuple[str, str], dtype: Any, expected: str) -> None:
    batch = {name: np.ones(3, kind) for name, kind in zip("ab", kinds, strict=True)}
    assert Concatenator(dtype=dtype).transform_batch(batch)["concat_out"].dtype == expected


def test_tensors_give_all_their_elements() -> None:
    matrices = tensor_array(np.arange(12.0).reshape(3, 2, 2))
    table = Concatenator().transform(dataset(block_rows=2, a=[10, 20, 30], m=matrices)).to_arrow()
    assert vectors(table).tolist() == [[10, 0, 1, 2, 3], [20, 4, 5, 6, 7], [30, 8, 9, 10, 11]]


def test_missing_values_are_nan_where_the_type_has_it() -> None:
    ds = dataset(a=pa.array([1, None]), b=[1.0, 2.0])
    np.testing.assert_array_equal(vectors(Concatenator().transform(ds).to_arrow()), [[1, 1], [np.nan, 2]])
    with pytest.raises(DataError, match=r"'a'.*missing.*int64.*SimpleImputer"):
        Concatenator(include=["a"]).transform(ds).to_arrow()


def test_columns_that_are_not_there() -> None:
    ds = dataset(a=[1], b=[2])
    with pytest.warns(UserWarning, match=r"without \['z'\]"):
        transformed = Concatenator(include=["a", "z"]).transform(ds)
    assert vectors(transformed.to_arrow()).tolist() == [[1]]
    for strict in (
        Concatenator(include=["z"], raise_if_missing=True),
        Concatenator(exclude=["z"], raise_if_missing=True),
    ):
        with pytest.raises(DataError, match=r"Concatenator.*'z'.*\['a', 'b'\]"):
            strict.transform(ds).to_arrow()
    with pytest.raises(DataError, match="none of the columns"), pytest.warns(UserWarning, match=r"\['z'\]"):
        Concatenator(include=["z"]).transform(ds).to_arrow()


def test_a_single_name_stands_for_a_list() -> None:
    batch = {"a": np.array([1]), "b": np.array([2])}
    assert Concatenator(exclude="b").transform_batch(batch)["concat_out"].tolist() == [[1]]
    assert Concatenator(include="b").transform_batch(batch)["concat_out"].tolist() == [[2]]


def test_what_cannot_be_put_together() -> None:
    with pytest.raises(DataError, match=r"'s'.*string.*OrdinalEncoder"):
        Concatenator().transform_batch({"a": np.array([1]), "s": np.array(["x"])})
    with pytest.raises(DataError, match="'b' already"):
        Concatenator("b", include=["a"]).transform_batch({"a": np.array([1]), "b": np.array([1])})


@pytest.mark.parametrize("arguments", [{"dtype": "nonsense"}, {"dtype": str}, {"output_column_name": ""}])
def test_settings_that_cannot_work(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Concatenator"):
        Concatenator(**arguments)


def test_a_misspelt_column_of_concatenator_is_told_with_the_near_miss() -> None:
    ds = data.from_items([{"width": 1.0, "height": 2.0}])
    with pytest.warns(UserWarning, match=r"\['widht'\].*'width'\?") as told:
        transformed = Concatenator(include=["widht", "height"]).transform(ds)
    assert told[0].filename == __file__
    assert transformed.take(1)[0]["concat_out"].tolist() == [2.0]


def test_concatenator_tells_when_rows_come_if_columns_are_known_only_then() -> None:
    ds = data.from_items([{"a": 1.0}]).map(lambda row: row)
    transformed = Concatenator(exclude=["b"]).transform(ds)
    with pytest.warns(UserWarning, match=r"without \['b'\]"):
        transformed.take(1)
