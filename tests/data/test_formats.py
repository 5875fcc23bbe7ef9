"""Chunks as batches and rows, and back: what becomes of each type, and errors that name the column."""

from __future__ import annotations

import datetime
import decimal
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data.formats import (
    check_batch_format,
    concat,
    conform,
    from_batch,
    from_rows,
    to_batch,
    to_numpy,
    to_rows,
)
from paceline.data.tensors import RaggedTensorType, ragged_array, tensor_array, tensor_to_numpy

NUMBERS = pa.record_batch({"x": pa.array([1.0, 2.0, 3.0], pa.float32()), "n": pa.array([1, 2, 3])})


def test_batch_formats() -> None:
    assert check_batch_format(None) == "pyarrow"
    assert check_batch_format("pandas") == "pandas"
    with pytest.raises(ConfigError, match="'polars'"):
        check_batch_format("polars")


def test_default_and_numpy_are_dicts_of_arrays() -> None:
    for batch_format in ("default", "numpy"):
        batch = to_batch(NUMBERS, check_batch_format(batch_format), copy=False)
        assert isinstance(batch, dict)
        assert list(batch) == ["x", "n"]
        assert batch["x"].dtype == np.float32
        assert batch["n"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("batch_format", ["numpy", "pandas"])
def test_writing_to_a_copy_does_not_reach_the_chunk(batch_format: Any) -> None:
    chunk = pa.record_batch({"x": pa.array([1.0, 2.0]), "t": tensor_array(np.zeros((2, 2)))})
    batch: Any = to_batch(chunk, batch_format, copy=True)
    if batch_format == "numpy":
        batch["x"][0] = 9
        batch["t"][0] = 9
    else:
        batch.loc[0, "x"] = 9
        batch["t"][0][:] = 9
    assert chunk.column("x").to_pylist() == [1.0, 2.0]
    assert not tensor_to_numpy(chunk.column("t"), copy=False).any()


def test_own_memory_is_handed_out_writable_without_a_copy() -> None:
    shared: Any = to_batch(NUMBERS, "numpy", copy=False)
    with pytest.raises(ValueError, match="read-only"):
        shared["x"][0] = 1
    chunk = pa.record_batch({"x": pa.array(np.zeros(3)), "b": pa.array([True, False, True])})
    mine: Any = to_batch(chunk, "numpy", copy=False, own=True)
    mine["x"][1] = 5
    assert chunk.column("x").to_pylist() == [0.0, 5.0, 0.0]
    assert mine["b"].flags.writeable


def test_own_memory_outlives_its_chunk() -> None:
    chunk = pa.record_batch({"x": pa.array(list(range(100_000)))})
    mine: Any = to_batch(chunk, "numpy", copy=False, own=True)
    del chunk
    assert mine["x"].sum() == 99_999 * 50_000


UTC_NOON = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("column", "dtype", "values"),
    [
        (pa.array([1, 2], pa.int16()), "int16", [1, 2]),
        (pa.array([1, None]), "float64", [1.0, None]),
        (pa.array([1, None], pa.float32()), "float32", [1.0, None]),
        (pa.array([True, False]), "bool", [True, False]),
        (pa.array([True, None]), "object", [True, None]),
        (pa.array(["a", None]), "object", ["a", None]),
        (pa.array(["a"], pa.large_string()), "object", ["a"]),
        (pa.array([b"a"]), "object", [b"a"]),
        (pa.array([UTC_NOON, None]), "datetime64[us]", [UTC_NOON.replace(tzinfo=None), None]),
        (pa.array([datetime.date(2024, 5, 1)]), "datetime64[D]", [datetime.date(2024, 5, 1)]),
        (pa.array([decimal.Decimal("1.5")]), "object", [decimal.Decimal("1.5")]),
        (pa.array([{"a": 1}, None]), "object", [{"a": 1}, None]),
        (pa.array(["u", "v", "u"]).dictionary_encode(), "object", ["u", "v", "u"]),
        (pa.array([[1, 2], [3, 4]]), "int64", [[1, 2], [3, 4]]),
        (pa.array([[1, None], [3, 4]]), "float64", [[1, None], [3, 4]]),
        (pa.array([[[1, 2]], [[3, 4]]]), "int64", [[[1, 2]], [[3, 4]]]),
        (pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), "float32", [[1.0, 2.0]]),
        (pa.array([[True, False]]), "bool", [[True, False]]),
        (pa.nulls(2), "object", [None, None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_types_in_numpy(column: pa.Array, dtype: str, values: list[Any]) -> None:
    for copy in (False, True):
        array = to_numpy(column, copy=copy)
        assert array.dtype == np.dtype(dtype)
        assert array.flags.writeable or not copy
        assert _without_nan(array.tolist()) == values
        # A slice that starts in the middle of the buffers gives the same as the slice of the array.
        assert _without_nan(to_numpy(column[1:], copy=copy).tolist()) == values[1:]


def _without_nan(values: Any) -> Any:
    if isinstance(values, list):
        return [_without_nan(value) for value in values]
    return None if isinstance(values, float) and np.isnan(values) else values


def test_lists_of_different_lengths_are_cells() -> None:
    array = to_numpy(pa.array([[1, 2], [3], None]), copy=True)
    assert array.dtype == object
    assert array[0].tolist() == [1, 2]
    assert array[2] is None
    array[1][0] = 5  # the caller's own


def test_pandas_frames_have_the_columns_in_order_with_tensors_as_cells() -> None:
    chunk = pa.record_batch(
        {
            "a": pa.array([1, 2]),
            "t": tensor_array(np.arange(4).reshape(2, 2)),
            "c": pa.array(["u", "v"]).dictionary_encode(),
        }
    )
    frame: Any = to_batch(chunk, "pandas", copy=True)
    assert list(frame.columns) == ["a", "t", "c"]
    assert frame["t"][1].tolist() == [2, 3]
    assert isinstance(frame["c"].dtype, pd.CategoricalDtype)
    assert from_batch(frame, "f").schema.types == chunk.schema.types


def test_rows_are_python_values_but_for_tensors() -> None:
    chunk = pa.record_batch(
        {
            "n": pa.array([1, 2]),
            "x": pa.array([0.5, None]),
            "s": pa.array(["a", None]),
            "l": pa.array([[1], [2, 3]]),
            "t": tensor_array(np.arange(4).reshape(2, 2)),
        }
    )
    first, second = to_rows(chunk)
    assert type(first["n"]) is int
    assert (first["x"], second["x"]) == (0.5, None)
    assert (first["s"], second["s"]) == ("a", None)
    assert second["l"] == [2, 3]
    assert second["t"].tolist() == [2, 3]
    assert from_rows([first, second], "f").schema == chunk.schema


def test_rows_that_lack_a_key_have_a_null_there() -> None:
    chunk = from_rows([{"a": 1}, {"b": "x"}, {"a": 3, "b": "y"}], "f")
    assert chunk.to_pydict() == {"a": [1, None, 3], "b": [None, "x", "y"]}
    assert from_rows([], "f").num_rows == 0


def test_a_row_that_is_no_dict_is_named() -> None:
    with pytest.raises(DataError, match=r"^map\(f\).*row 1\b.*dict.*3 \(int\)"):
        from_rows([{"a": 1}, 3], "map(f)")  # type: ignore[list-item]


def test_columns_of_every_kind_of_array() -> None:
    chunk = from_batch(
        {
            "float": np.array([1.0, 2.0]),
            "big_endian": np.array([1, 2], dtype=">i4"),
            "text": np.array(["a", "b"]),
            "objects": np.array(["a", np.nan], dtype=object),
            "matrix": np.ones((2, 3)),
            "text_matrix": np.array([["a", "b"], ["c", "d"]]),
            "torch": torch.ones(2, 3, requires_grad=True),
            "bfloat16": torch.ones(2, dtype=torch.bfloat16),
            "tensors": [torch.ones(2), torch.zeros(2)],
            "single_tensors": [torch.tensor(1), torch.tensor(2)],
            "lists": [np.ones(2), np.ones(3)],
            "images": [np.ones((2, 2)), np.ones((3, 2))],
            "range": range(2),
            "series": pd.Series(["a", None]),
            "category": pd.Categorical(["a", "b"]),
            "nullable": pd.array([1, None], dtype="Int64"),
            "scalars": [np.int32(3), None],
            "arrow": pa.chunked_array([[1], [2]]),
        },
        "f",
    )
    types = {field.name: field.type for field in chunk.schema}
    assert types["big_endian"] == pa.int32()
    assert types["objects"] == types["series"] == pa.string()
    assert types["matrix"] == pa.fixed_shape_tensor(pa.float64(), [3])
    assert types["text_matrix"] == pa.list_(pa.string())
    assert types["torch"] == pa.fixed_shape_tensor(pa.float32(), [3])
    assert types["bfloat16"] == pa.float32()
    assert types["tensors"] == pa.fixed_shape_tensor(pa.float32(), [2])
    assert types["single_tensors"] == pa.int64()
    assert types["lists"] == pa.list_(pa.float64())
    assert types["images"] == RaggedTensorType(pa.float64())
    assert types["category"] == pa.dictionary(pa.int32(), pa.string())
    assert chunk.column("objects").to_pylist() == ["a", None]
    assert chunk.column("nullable").to_pylist() == [1, None]
    assert chunk.column("arrow").to_pylist() == [1, 2]


def test_nan_stays_nan_from_numpy_and_is_null_from_pandas() -> None:
    assert from_batch({"x": np.array([1.0, np.nan])}, "f").column("x").null_count == 0
    assert from_batch(pd.DataFrame({"x": [1.0, np.nan]}), "f").column("x").null_count == 1


def test_tables_of_several_chunks_and_frames_of_other_tools() -> None:
    table = pa.concat_tables([pa.table({"a": [1, 2]}), pa.table({"a": [3]})])
    assert from_batch(table, "f").column("a").to_pylist() == [1, 2, 3]
    chunk = from_batch(pl.DataFrame({"a": [1], "s": ["x"], "l": [["y"]]}), "f")
    assert chunk.schema.field("s").type == pa.string()
    assert chunk.to_pylist() == [{"a": 1, "s": "x", "l": ["y"]}]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (None, "None"),
        ([1], r"\[1\] \(list\)"),
        (np.zeros(3), r"\(ndarray\)"),
        (pd.Series([1]), r"\(Series\)"),
        ({}, "no columns"),
        ({"a": 1}, r"column 'a' .*1 \(int\)"),
        ({"a": "xyz"}, r"column 'a' .*'xyz' \(str\)"),
        ({"a": np.float32(3)}, "column 'a' .*float32"),
        ({"a": torch.tensor(2)}, "column 'a' .*Tensor"),
        ({"a": {"b": 1}}, "column 'a' .*dict"),
        ({"a": [1], "b": [1, "x"]}, "column 'b' .*'x'"),
        ({"a": np.zeros(2, complex)}, "column 'a'"),
        ({"a": [1, "x"]}, "column 'a'"),
        ({"a": [1], "b": [1, 2]}, "'a': 1, 'b': 2"),
        ({1: [1]}, r"1 \(int\)"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "several columns.*'a'"),
        (pd.DataFrame({"a": [1, "x"]}), "column 'a'"),
    ],
    ids=str,
)
def test_what_is_no_batch_is_refused_with_place_and_column(batch: object, message: str) -> None:
    with pytest.raises(DataError, match=re.escape("map_batches(f): ")) as caught:
        from_batch(batch, "map_batches(f)")
    assert re.search(message, str(caught.value), re.DOTALL)


def test_concat_joins_all_kinds_of_columns() -> None:
    chunk = pa.record_batch(
        {
            "t": tensor_array(np.arange(4).reshape(2, 2)),
            "r": ragged_array([np.ones(1), np.ones((1, 2))]),
            "d": pa.array(["a", "b"]).dictionary_encode(),
            "s": pa.array(["x", "y"], pa.large_string()),
        }
    )
    other = pa.record_batch(
        [*chunk.columns[:2], pa.array(["c", "a"]).dictionary_encode(), chunk.column("s")], names=["t", "r", "d", "s"]
    )
    joined = concat([chunk, other.slice(1), chunk.slice(0, 0)])
    assert joined.schema == chunk.schema
    assert joined.column("d").to_pylist() == ["a", "b", "a"]
    assert tensor_to_numpy(joined.column("t"), copy=False).tolist() == [[0, 1], [2, 3], [2, 3]]
    assert concat([chunk]) is chunk


def test_concat_of_different_columns_says_both() -> None:
    with pytest.raises(DataError, match=r"(?s)a: int64.*and.*a: string"):
        concat([pa.record_batch({"a": [1]}), pa.record_batch({"a": ["x"]})])


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (pa.array([1, 2], pa.int32()), pa.int64()),
        (pa.array([1, 2], pa.int64()), pa.int32()),
        (pa.array([1, 2]), pa.float64()),
        (pa.array([1.5, 2.5], pa.float32()), pa.float64()),
        (pa.nulls(2), pa.string()),
        (pa.nulls(2), pa.fixed_shape_tensor(pa.int64(), [2])),
        (pa.array(["a", "b"], pa.large_string()), pa.string()),
        (pa.array(["a", "b"]).dictionary_encode(), pa.string()),
        (pa.array([[1], [2]], pa.list_(pa.int32())), pa.list_(pa.int64())),
        (pa.array([[1, 2], [3, 4]]), pa.fixed_shape_tensor(pa.int64(), [2])),
        (tensor_array(np.ones((2, 2))), pa.list_(pa.float64())),
        (tensor_array(np.ones((2, 2, 2))), RaggedTensorType(pa.float64())),
    ],
    ids=str,
)
def test_conform_changes_types_that_lose_nothing(have: pa.Array, want: pa.DataType) -> None:
    schema = pa.schema([("a", want)])
    chunk = conform(pa.record_batch({"a": have}), schema, "file 2")
    assert chunk.schema == schema
    before, after = to_rows(pa.record_batch({"a": have})), to_rows(chunk)
    for row, wanted in zip(after, before, strict=True):
        assert (row["a"] is None) == (wanted["a"] is None)
        np.testing.assert_array_equal(row["a"], wanted["a"])


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (pa.array([2**40]), pa.int32()),
        (pa.array([2**60 + 1]), pa.float64()),
        (pa.array([1.5]), pa.int64()),
        (pa.array([0.1]), pa.float32()),
        (pa.array(["1"]), pa.int64()),
        (pa.array([True]), pa.int64()),
        (pa.array([[1, 2], [3]]), pa.fixed_shape_tensor(pa.int64(), [2])),
        (tensor_array(np.ones((1, 2))), pa.fixed_shape_tensor(pa.float64(), [3])),
    ],
    ids=str,
)
def test_conform_refuses_what_would_lose_values(have: pa.Array, want: pa.DataType) -> None:
    with pytest.raises(DataError, match=r"^file 2: .*'a'.*type"):
        conform(pa.record_batch({"a": have}), pa.schema([("a", want)]), "file 2")


def test_conform_orders_columns_and_names_those_that_are_missing_or_additional() -> None:
    schema = pa.schema([("n", pa.int64()), ("x", pa.float32())])
    assert conform(NUMBERS, schema, "here").schema == schema
    with pytest.raises(DataError, match=r"here: .*'z'.*missing"):
        conform(NUMBERS, schema.append(pa.field("z", pa.int64())), "here")
    with pytest.raises(DataError, match=r"here: .*additional.*'x'"):
        conform(NUMBERS, pa.schema([("n", pa.int64())]), "here")


def test_columns_of_one_name_are_refused_wherever_they_come_from(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    for make in (
        lambda: data.from_arrow(twice),
        lambda: data.read_parquet(tmp_path / "twice.parquet").schema(),
        lambda: data.read_csv(tmp_path / "twice.csv").schema(),
        lambda: data.range(3).map_batches(lambda batch: twice, batch_format="pyarrow").take_all(),
    ):
        with pytest.raises(DataError, match=r"several columns.*'a'"):
            make()
