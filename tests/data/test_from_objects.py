"""Datasets of objects in memory, of tables of other libraries, and of numbers that are counted up."""

from __future__ import annotations

import pickle
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data import from_objects
from paceline.data.block import ReadRequest, Source
from paceline.data.dataset import Dataset
from tests.data.reading import dataset_column, dataset_rows, hugging_face_rows, plan_of

# -- from_items -------------------------------------------------------------------------------


def test_dicts_are_rows_and_other_values_items() -> None:
    assert dataset_rows(from_objects.from_items([{"a": 1, "b": "x"}, {"a": 2}])) == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": None},
    ]
    assert dataset_column(from_objects.from_items(range(5)), "item") == [0, 1, 2, 3, 4]
    assert dataset_column(from_objects.from_items("ab"), "item") == ["a", "b"]
    assert from_objects.from_items([np.ones((2, 2))] * 3).schema().field("item").type.shape == [2, 2]


def test_parallelism_is_the_number_of_blocks() -> None:
    dataset = from_objects.from_items([1, 2, 3, 4, 5], parallelism=2)
    assert [block.rows for block in plan_of(dataset).blocks()] == [3, 2]
    with pytest.raises(ConfigError, match="parallelism"):
        from_objects.from_items([1], parallelism=0)


def test_no_items_are_a_dataset_without_rows() -> None:
    assert dataset_rows(from_objects.from_items([])) == []


def test_mixed_items_are_refused_with_their_place() -> None:
    with pytest.raises(DataError, match=r"item 1\b.*int"):
        from_objects.from_items([{"a": 1}, 2])
    with pytest.raises(DataError, match=r"from_items.*'a'.*'x'"):
        from_objects.from_items([{"a": 1}, {"a": "x"}])


# -- pandas, numpy ----------------------------------------------------------------------------


def test_frames_keep_named_indexes_and_drop_others() -> None:
    frame = pd.DataFrame({"a": [1, 2], "s": ["x", None]}, index=[5, 6])
    assert dataset_rows(from_objects.from_pandas(frame)) == [{"a": 1, "s": "x"}, {"a": 2, "s": None}]
    named = frame.rename_axis("key")
    assert dataset_column(from_objects.from_pandas(named), "key") == [5, 6]
    with pytest.raises(DataError, match=r"index.*column"):
        from_objects.from_pandas(frame.rename_axis("a"))


def test_several_frames_are_one_dataset() -> None:
    frames = [pd.DataFrame({"a": [1], "b": [2]}), pd.DataFrame({"b": [4.5], "a": [3]})]
    assert dataset_rows(from_objects.from_pandas(frames)) == [{"a": 1, "b": 2.0}, {"a": 3, "b": 4.5}]
    with pytest.raises(DataError, match=r"0.*\['a'\].*1.*\['b'\]"):
        from_objects.from_pandas([pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]})])
    with pytest.raises(DataError, match=r"from_pandas.*\ba\b.*int64.*string"):
        from_objects.from_pandas([pd.DataFrame({"a": [1]}), pd.DataFrame({"a": ["x"]})])


def test_a_column_of_mixed_values_is_named() -> None:
    with pytest.raises(DataError, match=r"from_pandas.*'a'"):
        from_objects.from_pandas(pd.DataFrame({"a": [1, "x"]}))


def test_arrays_are_a_column_of_numbers_or_tensors() -> None:
    assert dataset_column(from_objects.from_numpy(np.arange(3)), "data") == [0, 1, 2]
    joined = from_objects.from_numpy([np.zeros((2, 3)), np.ones((1, 3))])
    assert np.array(dataset_column(joined, "data")).tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 1]]
    with pytest.raises(DataError, match=r"\(2, 3\).*\(2, 4\)"):
        from_objects.from_numpy([np.zeros((2, 3)), np.zeros((2, 4))])
    with pytest.raises(ConfigError, match="without dimensions"):
        from_objects.from_numpy(np.array(3))
    with pytest.raises(ConfigError, match=r"list.*\bint\b"):
        from_objects.from_numpy([1, 2])  # type: ignore[list-item]


def test_what_happens_to_arrays_and_frames_later_does_not_reach_the_dataset() -> None:
    array, frame = np.zeros(3), pd.DataFrame({"x": [0.0, 0.0], "y": [0, 0]}, index=pd.Index([1, 2], name="i"))
    of_array, of_frame = data.from_numpy(array), data.from_pandas(frame)
    array[:] = 9
    frame.iloc[:, :] = 9
    assert of_array.sum("data") == 0
    assert of_frame.sum(["x", "y"]) == {"sum(x)": 0, "sum(y)": 0}


# -- Arrow ------------------------------------------------------------------------------------


def _arrow_things() -> dict[str, Any]:
    table = pa.table({"a": [1, 2, 3], "s": ["x", "y", None]})
    frame = pl.DataFrame({"a": [1, 2, 3], "s": ["x", "y", None]})
    return {
        "table": table,
        "batch": table.to_batches()[0],
        "reader": table.to_reader(),
        "list": [table.slice(0, 1), table.slice(1)],
        "polars": frame,
        "duckdb": duckdb.sql("select * from (values (1, 'x'), (2, 'y'), (3, null)) as t(a, s) order by a"),
    }


@pytest.mark.parametrize("kind", ["table", "batch", "reader", "list", "polars", "duckdb"])
def test_whatever_speaks_arrow(kind: str) -> None:
    dataset = from_objects.from_arrow(_arrow_things()[kind])
    assert dataset_rows(dataset) == [{"a": 1, "s": "x"}, {"a": 2, "s": "y"}, {"a": 3, "s": None}]
    assert dataset.schema().field("s").type == pa.string()


def test_types_of_polars_become_plain_ones() -> None:
    frame = pl.DataFrame(
        {"c": pl.Series(["u", "v"], dtype=pl.Categorical), "l": [["x"], ["y", "z"]], "r": [{"k": "w"}, {"k": None}]}
    )
    dataset = from_objects.from_arrow(frame)
    types = {field.name: field.type for field in dataset.schema()}
    assert types["c"] == pa.dictionary(pa.int32(), pa.string())
    assert types["l"].value_type == pa.string()
    assert types["r"] == pa.struct([("k", pa.string())])
    assert dataset_rows(dataset) == frame.to_dicts()


def test_what_does_not_speak_arrow_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"frame\.collect\(\)"):
        from_objects.from_arrow(pl.DataFrame({"a": [1]}).lazy())
    with pytest.raises(ConfigError, match=r"\bint\b"):
        from_objects.from_arrow(3)


# -- counting ---------------------------------------------------------------------------------


def test_ranges_are_made_when_they_are_read() -> None:
    dataset = from_objects.range(10, parallelism=3)
    assert [block.rows for block in plan_of(dataset).blocks()] == [4, 4, 2]
    assert dataset_column(dataset, "id", chunk_rows=3) == list(range(10))
    assert dataset_rows(from_objects.range(0)) == []


def test_tensors_of_a_range_are_filled_with_their_row_number() -> None:
    rows = dataset_column(from_objects.range_tensor(3, shape=(2, 2)), "data")
    assert [row.tolist() for row in rows] == [[[n, n], [n, n]] for n in range(3)]
    assert from_objects.range_tensor(0, shape=(2, 2)).schema().field("data").type.shape == [2, 2]


@pytest.mark.parametrize("rows", [-1, 2.5])
def test_numbers_of_rows_are_checked(rows: Any) -> None:
    with pytest.raises(ConfigError, match=f"{rows}"):
        from_objects.range(rows)


# -- common to all ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dataset",
    [
        from_objects.from_items([{"a": n, "s": str(n)} for n in range(100)], parallelism=3),
        from_objects.from_arrow(pa.table({"a": range(100), "s": [str(n) for n in range(100)]}).slice(10, 80)),
        from_objects.range(100, parallelism=7),
        from_objects.range_tensor(50, shape=(3,)),
        from_objects.from_huggingface(hugging_face_rows()),
    ],
    ids=lambda dataset: plan_of(dataset).describe(),
)
def test_parts_of_blocks_add_up_to_the_whole(dataset: Dataset) -> None:
    source = plan_of(dataset)
    travelled = pickle.loads(pickle.dumps(source))
    columns = (source.schema().names[-1],)
    for number, block in enumerate(source.blocks()):
        whole = _table(source, number, ReadRequest())
        assert whole.num_rows == block.rows
        middle = whole.num_rows // 3
        parts = [
            _table(travelled, number, ReadRequest(0, middle, chunk_rows=2)),
            _table(travelled, number, ReadRequest(middle)),
        ]
        assert pa.concat_tables(parts).combine_chunks().equals(whole)
        assert _table(source, number, ReadRequest(columns=columns)).equals(whole.select(columns))
        assert _table(source, number, ReadRequest(start=block.rows or 0)).num_rows == 0


def _table(source: Source, block: int, request: ReadRequest) -> pa.Table:
    schema = source.schema() if request.columns is None else None
    chunks = list(source.read(block, request))
    assert all(chunk.num_rows <= request.chunk_rows for chunk in chunks)
    return pa.Table.from_batches(chunks, schema=schema).combine_chunks()


def test_a_small_part_of_a_large_table_travels_alone() -> None:
    part = pa.table({"a": np.zeros(1_000_000)}).slice(500, 10)
    assert len(pickle.dumps(plan_of(from_objects.from_arrow(part)))) < 5000


def test_datasets_of_ray_are_refused_with_ways_out() -> None:
    ray_dataset = type("Dataset", (), {"__module__": "ray.data.dataset"})()
    for function in ("from_items", "from_pandas", "from_numpy", "from_arrow", "from_huggingface", "from_torch"):
        for value in (ray_dataset, [ray_dataset]):
            if isinstance(value, list) and function in ("from_huggingface", "from_torch"):
                continue
            with pytest.raises(ConfigError, match=rf"{function}.*ray\.data.*write_parquet.*to_pandas"):
                getattr(from_objects, function)(value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: data.from_items(5), r"from_items.*list.*int"),
        (lambda: data.from_items({"x": [1]}), r"dict.*from_items\(\[row\]\)"),
        (lambda: data.from_items(pd.DataFrame({"x": [1]})), "from_pandas"),
        (lambda: data.from_numpy([[1, 2], [3]]), "list.*from_items"),
    ],
)
def test_other_objects_are_refused_with_the_function_to_use(call: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        call()


@pytest.mark.parametrize(
    ("rows", "parallelism", "blocks"), [(20, 6, 6), (20, 20, 20), (3, 6, 3), (0, 6, 0), (20, 1, 1)]
)
def test_blocks_are_as_many_as_asked_for(rows: int, parallelism: int, blocks: int) -> None:
    items = data.from_items([{"id": number} for number in range(rows)], parallelism=parallelism)
    counted = data.range(rows, parallelism=parallelism)
    for dataset in (items, counted):
        assert dataset.num_blocks() == blocks
        assert [row["id"] for row in dataset.take_all()] == list(range(rows))


def test_override_num_blocks_is_another_name_of_parallelism() -> None:
    datasets = pytest.importorskip("datasets")
    table = pa.table({"a": [1, 2, 3]})
    for dataset in (
        from_objects.from_items([1, 2, 3], override_num_blocks=2),
        from_objects.from_pandas(table.to_pandas(), override_num_blocks=2),
        from_objects.from_arrow(table, override_num_blocks=2),
        from_objects.from_huggingface(datasets.Dataset.from_dict({"a": [1, 2, 3]}), override_num_blocks=2),
        from_objects.range(3, override_num_blocks=2, concurrency=1),
        from_objects.range_tensor(3, shape=(2,), override_num_blocks=2),
    ):
        assert isinstance(dataset, Dataset)
        assert (dataset.num_blocks(), dataset.count()) == (2, 3)
