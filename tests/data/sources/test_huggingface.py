"""Datasets of Hugging Face: rows, formats, files, streams and splits."""

from __future__ import annotations

import pickle
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest

from paceline.air.errors import ConfigError
from paceline.data import from_objects
from paceline.data.block import ReadRequest
from tests.data.reading import dataset_column, dataset_rows, hugging_face_rows, plan_of


def test_hugging_face_rows_in_their_order() -> None:
    hugging_face = hugging_face_rows()
    dataset = from_objects.from_huggingface(hugging_face)
    assert dataset_column(dataset, "s") == hugging_face["s"][:]
    assert dataset_rows(dataset)[3]["m"] == [[3.0, 0.0], [0.0, 3.0]]
    shuffled = hugging_face.shuffle(seed=1).select(range(2, 8))
    assert dataset_column(from_objects.from_huggingface(shuffled), "a", chunk_rows=4) == shuffled["a"][:]


def test_the_schema_is_that_of_the_rows() -> None:
    source = plan_of(from_objects.from_huggingface(hugging_face_rows()))
    for chunk in source.read(0, ReadRequest()):
        assert chunk.schema == source.schema()
    assert source.schema().field("a").type == pa.int32()


def test_the_columns_that_a_format_chooses() -> None:
    dataset = from_objects.from_huggingface(hugging_face_rows().with_format("numpy", columns=["a"]))
    assert dataset_rows(dataset)[:2] == [{"a": 0}, {"a": 1}]
    with pytest.raises(ConfigError, match="with_transform"):
        from_objects.from_huggingface(hugging_face_rows().with_transform(lambda batch: batch))


def test_hugging_face_files_travel_by_name(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"x": np.zeros(100_000)}).save_to_disk(tmp_path / "saved")
    source = plan_of(from_objects.from_huggingface(datasets.load_from_disk(tmp_path / "saved")))
    pickled = pickle.dumps(source)
    assert len(pickled) < 20_000
    copy = pickle.loads(pickled)
    assert (
        sum(chunk.num_rows for block in range(len(copy.blocks())) for chunk in copy.read(block, ReadRequest()))
        == 100_000
    )


def test_streamed_hugging_face_datasets() -> None:
    stream = hugging_face_rows().to_iterable_dataset(num_shards=3).map(lambda row: {"b": row["a"] + 1})
    dataset = from_objects.from_huggingface(stream)
    assert dataset_column(dataset, "b", chunk_rows=3) == list(range(1, 11))
    assert dataset_column(dataset, "b", start=4, stop=6, columns=("b",)) == [5, 6]


def test_a_dict_of_splits() -> None:
    splits = datasets.DatasetDict({"train": hugging_face_rows(), "test": hugging_face_rows().select([0])})
    parts = from_objects.from_huggingface(splits)
    assert isinstance(parts, dict)
    assert {name: len(dataset_rows(part)) for name, part in parts.items()} == {"train": 10, "test": 1}
    with pytest.raises(ConfigError, match=r"from_huggingface.*\blist\b"):
        from_objects.from_huggingface([1])
