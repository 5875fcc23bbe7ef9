"""Datasets of objects in memory, of other libraries' datasets, and of numbers that are counted up."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from paceline.air.errors import ConfigError, DataError
from paceline.data import from_objects
from paceline.data.block import ReadRequest, Source
from paceline.data.dataset import Dataset
from paceline.data.formats import to_rows


def _source(dataset: Any) -> Source:
    assert isinstance(dataset, Dataset)
    source: Source = dataset._plan
    return source


def _rows(dataset: Any, **request: Any) -> list[dict[str, Any]]:
    source = _source(dataset)
    chunks = (chunk for block in range(len(source.blocks())) for chunk in source.read(block, ReadRequest(**request)))
    return [row for chunk in chunks for row in to_rows(chunk)]


def _column(dataset: Any, name: str, **request: Any) -> list[Any]:
    return [row[name] for row in _rows(dataset, **request)]


# -- from_items -------------------------------------------------------------------------------


def test_dicts_are_rows_and_other_values_items() -> None:
    assert _rows(from_objects.from_items([{"a": 1, "b": "x"}, {"a": 2}])) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert _column(from_objects.from_items(range(5)), "item") == [0, 1, 2, 3, 4]
    assert _column(from_objects.from_items("ab"), "item") == ["a", "b"]
    assert from_objects.from_items([np.ones((2, 2))] * 3).schema().field("item").type.shape == [2, 2]


def test_parallelism_is_the_number_of_blocks() -> None:
    dataset = from_objects.from_items([1, 2, 3, 4, 5], parallelism=2)
    assert [block.rows for block in _source(dataset).blocks()] == [3, 2]
    with pytest.raises(ConfigError, match="parallelism"):
        from_objects.from_items([1], parallelism=0)


def test_no_items_are_a_dataset_without_rows() -> None:
    assert _rows(from_objects.from_items([])) == []


def test_mixed_items_are_refused_with_their_place() -> None:
    with pytest.raises(DataError, match="item 1 is int"):
        from_objects.from_items([{"a": 1}, 2])
    with pytest.raises(DataError, match=r"from_items: column 'a' .*'x'"):
        from_objects.from_items([{"a": 1}, {"a": "x"}])


# -- pandas, numpy ----------------------------------------------------------------------------


def test_frames_keep_named_indexes_and_drop_others() -> None:
    frame = pd.DataFrame({"a": [1, 2], "s": ["x", None]}, index=[5, 6])
    assert _rows(from_objects.from_pandas(frame)) == [{"a": 1, "s": "x"}, {"a": 2, "s": None}]
    named = frame.rename_axis("key")
    assert _column(from_objects.from_pandas(named), "key") == [5, 6]
    with pytest.raises(DataError, match="the index cannot become a column"):
        from_objects.from_pandas(frame.rename_axis("a"))


def test_several_frames_are_one_dataset() -> None:
    frames = [pd.DataFrame({"a": [1], "b": [2]}), pd.DataFrame({"b": [4.5], "a": [3]})]
    assert _rows(from_objects.from_pandas(frames)) == [{"a": 1, "b": 2.0}, {"a": 3, "b": 4.5}]
    with pytest.raises(DataError, match=r"part 0 has \['a'\] and part 1 has \['b'\]"):
        from_objects.from_pandas([pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]})])
    with pytest.raises(DataError, match="different types"):
        from_objects.from_pandas([pd.DataFrame({"a": [1]}), pd.DataFrame({"a": ["x"]})])


def test_a_column_of_mixed_values_is_named() -> None:
    with pytest.raises(DataError, match=r"from_pandas: column 'a' cannot be stored"):
        from_objects.from_pandas(pd.DataFrame({"a": [1, "x"]}))


def test_arrays_are_a_column_of_numbers_or_tensors() -> None:
    assert _column(from_objects.from_numpy(np.arange(3)), "data") == [0, 1, 2]
    joined = from_objects.from_numpy([np.zeros((2, 3)), np.ones((1, 3))])
    assert np.array(_column(joined, "data")).tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 1]]
    with pytest.raises(DataError, match=r"\(2, 3\) and \(2, 4\)"):
        from_objects.from_numpy([np.zeros((2, 3)), np.zeros((2, 4))])
    with pytest.raises(ConfigError, match="without dimensions"):
        from_objects.from_numpy(np.array(3))
    with pytest.raises(ConfigError, match=r"the list holds int"):
        from_objects.from_numpy([1, 2])  # type: ignore[list-item]


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
    assert _rows(dataset) == [{"a": 1, "s": "x"}, {"a": 2, "s": "y"}, {"a": 3, "s": None}]
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
    assert _rows(dataset) == frame.to_dicts()


def test_what_does_not_speak_arrow_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"frame\.collect\(\)"):
        from_objects.from_arrow(pl.DataFrame({"a": [1]}).lazy())
    with pytest.raises(ConfigError, match=r"not int"):
        from_objects.from_arrow(3)


# -- Hugging Face -----------------------------------------------------------------------------


def _hugging_face() -> datasets.Dataset:
    features = datasets.Features(
        {"a": datasets.Value("int32"), "s": datasets.Value("string"), "m": datasets.Array2D((2, 2), "float32")}
    )
    columns = {"a": list(range(10)), "s": [str(n) for n in range(10)], "m": [[[n, 0], [0, n]] for n in range(10)]}
    return datasets.Dataset.from_dict(columns, features=features)


def test_hugging_face_rows_in_their_order() -> None:
    hugging_face = _hugging_face()
    dataset = from_objects.from_huggingface(hugging_face)
    assert _column(dataset, "s") == hugging_face["s"][:]
    assert _rows(dataset)[3]["m"] == [[3.0, 0.0], [0.0, 3.0]]
    shuffled = hugging_face.shuffle(seed=1).select(range(2, 8))
    assert _column(from_objects.from_huggingface(shuffled), "a", chunk_rows=4) == shuffled["a"][:]


def test_the_schema_is_that_of_the_rows() -> None:
    source = _source(from_objects.from_huggingface(_hugging_face()))
    for chunk in source.read(0, ReadRequest()):
        assert chunk.schema == source.schema()
    assert source.schema().field("a").type == pa.int32()


def test_the_columns_that_a_format_chooses() -> None:
    dataset = from_objects.from_huggingface(_hugging_face().with_format("numpy", columns=["a"]))
    assert _rows(dataset)[:2] == [{"a": 0}, {"a": 1}]
    with pytest.raises(ConfigError, match="with_transform"):
        from_objects.from_huggingface(_hugging_face().with_transform(lambda batch: batch))


def test_hugging_face_files_travel_by_name(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"x": np.zeros(100_000)}).save_to_disk(tmp_path / "saved")
    source = _source(from_objects.from_huggingface(datasets.load_from_disk(tmp_path / "saved")))
    pickled = pickle.dumps(source)
    assert len(pickled) < 20_000
    copy = pickle.loads(pickled)
    assert (
        sum(chunk.num_rows for block in range(len(copy.blocks())) for chunk in copy.read(block, ReadRequest()))
        == 100_000
    )


def test_streamed_hugging_face_datasets() -> None:
    stream = _hugging_face().to_iterable_dataset(num_shards=3).map(lambda row: {"b": row["a"] + 1})
    dataset = from_objects.from_huggingface(stream)
    assert _column(dataset, "b", chunk_rows=3) == list(range(1, 11))
    assert _column(dataset, "b", start=4, stop=6, columns=("b",)) == [5, 6]


def test_a_dict_of_splits() -> None:
    splits = datasets.DatasetDict({"train": _hugging_face(), "test": _hugging_face().select([0])})
    parts = from_objects.from_huggingface(splits)
    assert isinstance(parts, dict)
    assert {name: len(_rows(part)) for name, part in parts.items()} == {"train": 10, "test": 1}
    with pytest.raises(ConfigError, match=r"not list"):
        from_objects.from_huggingface([1])


# -- torch ------------------------------------------------------------------------------------


class Squares(torch.utils.data.Dataset[Any]):
    def __init__(self, item: Any, rows: int = 2500) -> None:
        self.item = item
        self.rows = rows
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return self.item(index)


def test_torch_items_are_asked_for_when_they_are_read() -> None:
    squares = Squares(lambda index: {"x": torch.tensor([index, index**2]), "n": index})
    dataset = from_objects.from_torch(squares)
    assert squares.asked == []
    source = _source(dataset)
    assert [block.rows for block in source.blocks()] == [1024, 1024, 452]
    rows = [row for chunk in source.read(1, ReadRequest(start=10, stop=12)) for row in to_rows(chunk)]
    assert [row["n"] for row in rows] == [1034, 1035]
    assert rows[1]["x"].tolist() == [1035, 1035**2]
    assert set(squares.asked) == {*range(16), 1034, 1035}  # the first few tell the schema


@pytest.mark.parametrize(
    ("item", "row"),
    [
        (lambda index: index, {"item": 1}),
        (lambda index: torch.tensor(index), {"item": 1}),
        (lambda index: (float(index), str(index)), {"item_0": 1.0, "item_1": "1"}),
    ],
)
def test_names_of_torch_columns(item: Any, row: dict[str, Any]) -> None:
    assert _rows(from_objects.from_torch(Squares(item, rows=3)))[1] == row


def test_many_torch_items_at_once() -> None:
    class Batched(Squares):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [10 * index for index in indices]

    assert _column(from_objects.from_torch(Batched(None, rows=3)), "item") == [0, 10, 20]


def test_a_torch_item_that_fails_or_differs_is_named() -> None:
    def item(index: int) -> Any:
        if index == 21:
            raise OSError("disk gone")
        return index

    with pytest.raises(DataError, match="Squares: item 21 cannot be read: OSError: disk gone"):
        _rows(from_objects.from_torch(Squares(item, rows=30)))
    with pytest.raises(DataError, match="Squares, items 16 to 19: column 'item' has type string"):
        _rows(from_objects.from_torch(Squares(lambda index: index if index < 16 else "x", rows=20)), chunk_rows=16)


def test_iterable_torch_datasets_are_refused_with_a_way_out() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

        def __len__(self) -> int:
            return 2

    with pytest.raises(ConfigError, match=r"from_items\(list\(dataset\)\)"):
        from_objects.from_torch(Stream())


# -- counting ---------------------------------------------------------------------------------


def test_ranges_are_made_when_they_are_read() -> None:
    dataset = from_objects.range(10, parallelism=3)
    assert [block.rows for block in _source(dataset).blocks()] == [4, 4, 2]
    assert _column(dataset, "id", chunk_rows=3) == list(range(10))
    assert _rows(from_objects.range(0)) == []


def test_tensors_of_a_range_are_filled_with_their_row_number() -> None:
    rows = _column(from_objects.range_tensor(3, shape=(2, 2)), "data")
    assert [row.tolist() for row in rows] == [[[n, n], [n, n]] for n in range(3)]
    assert from_objects.range_tensor(0, shape=(2, 2)).schema().field("data").type.shape == [2, 2]


@pytest.mark.parametrize("rows", [-1, 2.5])
def test_numbers_of_rows_are_checked(rows: Any) -> None:
    with pytest.raises(ConfigError, match=f"not {rows}"):
        from_objects.range(rows)


# -- common to all ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dataset",
    [
        from_objects.from_items([{"a": n, "s": str(n)} for n in range(100)], parallelism=3),
        from_objects.from_arrow(pa.table({"a": range(100), "s": [str(n) for n in range(100)]}).slice(10, 80)),
        from_objects.range(100, parallelism=7),
        from_objects.range_tensor(50, shape=(3,)),
        from_objects.from_huggingface(_hugging_face()),
    ],
    ids=lambda dataset: _source(dataset).describe(),
)
def test_parts_of_blocks_add_up_to_the_whole(dataset: Dataset) -> None:
    source = _source(dataset)
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
    assert len(pickle.dumps(_source(from_objects.from_arrow(part)))) < 5000


def test_datasets_of_ray_are_refused_with_ways_out() -> None:
    ray_dataset = type("Dataset", (), {"__module__": "ray.data.dataset"})()
    for function in ("from_items", "from_pandas", "from_numpy", "from_arrow", "from_huggingface", "from_torch"):
        for value in (ray_dataset, [ray_dataset]):
            if isinstance(value, list) and function in ("from_huggingface", "from_torch"):
                continue
            with pytest.raises(ConfigError, match=rf"{function}: .*ray\.data.*write_parquet.*to_pandas"):
                getattr(from_objects, function)(value)
