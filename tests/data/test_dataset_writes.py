"""Writing files: every format comes back as it was, and a failed write leaves nothing."""

from __future__ import annotations

import base64
import datetime
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataError, DataNotFoundError
from tests.data.writing import files, mixed, table
from tests.storage.s3_server import s3_filesystem, s3_server

# -- formats --------------------------------------------------------------------------------


def test_parquet_comes_back_with_types_and_order(tmp_path: Path) -> None:
    dataset = mixed().zip(data.range_tensor(10, shape=(2, 3)))
    dataset.write_parquet(tmp_path / "out")
    assert len(files(tmp_path / "out")) == 3  # one per block
    assert [path.name[-15:] for path in files(tmp_path / "out")] == [f"_00000{i}.parquet" for i in range(3)]
    back = data.read_parquet(str(tmp_path / "out"))
    assert back.schema() == dataset.schema()
    assert back.to_arrow().equals(dataset.to_arrow())


def test_parquet_settings_reach_the_writer(tmp_path: Path) -> None:
    data.range(100, parallelism=1).write_parquet(tmp_path, compression="zstd", row_group_size=30)
    (path,) = files(tmp_path)
    metadata = pq.ParquetFile(path).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [30, 30, 30, 10]
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_csv_comes_back(tmp_path: Path) -> None:
    mixed().write_csv(tmp_path)
    assert data.read_csv(str(tmp_path)).to_arrow().to_pylist() == mixed().to_arrow().to_pylist()
    mixed().write_csv(tmp_path / "bare", write_options=pa_csv.WriteOptions(include_header=False))
    assert files(tmp_path / "bare")[0].read_text().startswith("0,0,")
    with pytest.raises(DataError, match="'data'"):
        data.range_tensor(3).write_csv(tmp_path / "tensors")


@pytest.mark.parametrize(
    "column", [pa.array([None, 1, None, 3]), pa.array([1.5, None, None, 2.5]), pa.array([None, "a", None, "b"])]
)
def test_nulls_of_a_single_column_survive_csv(tmp_path: Path, column: pa.Array) -> None:
    data.from_arrow(pa.table({"x": column})).repartition(1).write_csv(tmp_path)
    found = data.read_csv(tmp_path)
    texts = pa.types.is_string(column.type)
    expected = column.fill_null("") if texts else column  # CSV does not tell an empty text from none
    assert found.to_arrow().column("x").to_pylist() == expected.to_pylist()


def test_bytes_that_are_no_text_are_refused_by_csv(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"write_csv.*UTF8"):
        data.from_arrow(pa.table({"b": [b"\xff"]})).write_csv(tmp_path)
    assert not list(tmp_path.iterdir())


def test_json_comes_back_one_object_per_line(tmp_path: Path) -> None:
    mixed().write_json(tmp_path / "plain")
    assert data.read_json(str(tmp_path / "plain")).to_arrow().to_pylist() == mixed().to_arrow().to_pylist()
    day = datetime.datetime(2024, 5, 6, 7, 8, 9)
    dataset = table({"bytes": [b"\x00\xff"], "when": [day], "list": [[1, 2]], "deep": [{"a": 1}], "x": [0.1 + 0.2]})
    dataset.zip(data.range_tensor(1, shape=(2,))).write_json(tmp_path / "rich")
    (path,) = files(tmp_path / "rich")
    (row,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert row == {
        "bytes": base64.b64encode(b"\x00\xff").decode(),
        "when": day.isoformat(),
        "list": [1, 2],
        "deep": {"a": 1},
        "x": 0.1 + 0.2,
        "data": [0, 0],
    }


def test_nanoseconds_are_written_to_json(tmp_path: Path) -> None:
    when = pa.array([1, None], pa.timestamp("ns"))
    took = pa.array([1_000_000_001, None], pa.duration("ns"))
    data.from_arrow(pa.table({"when": when, "took": took})).repartition(1).write_json(tmp_path)
    lines = next(tmp_path.iterdir()).read_text().splitlines()
    assert lines[0] == '{"when":"1970-01-01T00:00:00.000000001","took":"P0DT0H0M1.000000001S"}'
    assert lines[1] == '{"when":null,"took":null}'


def test_numpy_writes_one_column(tmp_path: Path) -> None:
    dataset = data.range_tensor(10, shape=(2, 2), parallelism=2).zip(table({"text": [f"t{i}" for i in range(10)]}))
    dataset.write_numpy(tmp_path / "data", column="data")
    arrays = [np.load(path) for path in files(tmp_path / "data")]
    assert np.array_equal(np.concatenate(arrays)[:, 1, 1], np.arange(10))
    dataset.write_numpy(tmp_path / "text", column="text")
    assert np.load(files(tmp_path / "text")[0])[2] == "t2"
    with pytest.raises(DataError, match="'nothing'"):
        dataset.write_numpy(tmp_path / "text", column="nothing")
    with pytest.raises(DataError, match="'lists'"):
        table({"lists": [[1], [1, 2]]}).write_numpy(tmp_path / "lists", column="lists")
    assert files(tmp_path / "lists") == []


def test_tfrecords_come_back(tmp_path: Path) -> None:
    dataset = table(
        {
            "id": [1, -2, 2**62],
            "x": pa.array([0.5, 1.5, -2.0], pa.float32()),
            "name": [b"one", b"two", b""],
            "many": pa.array([[1, 200, 3], [-4], []], pa.list_(pa.int64())),
            "flag": [True, False, True],
        },
        2,
    ).zip(data.range_tensor(3, shape=(2,)))
    dataset.write_tfrecords(tmp_path)
    rows = data.read_tfrecords(str(tmp_path)).to_arrow().to_pylist()
    assert [row["id"] for row in rows] == [1, -2, 2**62]
    assert [row["x"] for row in rows] == [0.5, 1.5, -2.0]
    assert [row["name"] for row in rows] == [b"one", b"two", b""]
    assert [list(row["many"] or []) for row in rows] == [[1, 200, 3], [-4], []]
    assert [row["flag"] for row in rows] == [1, 0, 1]
    assert [list(row["data"]) for row in rows] == [[0, 0], [1, 1], [2, 2]]
    with pytest.raises(DataError, match="'when'"):
        table({"when": [datetime.date(2024, 1, 1)]}).write_tfrecords(tmp_path / "dates")


# -- places ---------------------------------------------------------------------------------


def test_directories_are_made_and_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a" / "b"
    mixed(4).write_parquet(place)
    with pytest.warns(UserWarning, match=r"\b1 \.parquet file"):
        mixed(4).write_parquet(str(place))
    with pytest.warns(UserWarning, match=r"\b2 \.parquet file"):
        mixed(4).write_parquet(f"file://{place}")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.warns(UserWarning, match=r"\b3 \.parquet file"):
        mixed(4).write_parquet("~/a/b")
    assert data.read_parquet(str(place)).count() == 16
    with pytest.raises(DataNotFoundError, match="nowhere"):
        mixed().write_parquet(tmp_path / "nowhere", try_create_dir=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "file"))):
        mixed().write_parquet(tmp_path / "file")
    with pytest.raises(ConfigError, match="path"):
        mixed().write_parquet("")


@pytest.mark.parametrize("name", ["parquet", "csv", "json", "numpy", "tfrecords"])
def test_writing_to_a_directory_with_files_of_the_format_is_told(name: str, tmp_path: Path) -> None:
    arguments = {"column": "id"} if name == "numpy" else {}
    write = getattr(data.range(5), f"write_{name}")
    write(tmp_path, **arguments)
    (tmp_path / "notes.txt").touch()
    with pytest.warns(UserWarning, match=rf"\b1 .*read_{name}\b") as told:
        write(tmp_path, **arguments)
    assert told[0].filename == __file__
    assert getattr(data, f"read_{name}")(str(tmp_path)).count() == 10


def test_uris_and_given_filesystems(tmp_path: Path) -> None:

    memory = fsspec.filesystem("memory")
    try:
        mixed().write_parquet("memory://written/here")
        assert len(memory.ls("/written/here")) == 3
        assert data.read_parquet("memory://written/here").to_arrow().equals(mixed().to_arrow())
    finally:
        memory.rm("/written", recursive=True)
    mixed().write_csv(str(tmp_path / "given"), filesystem=pa_fs.LocalFileSystem())
    assert len(files(tmp_path / "given")) == 3


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    with s3_server() as endpoint:
        filesystem = s3_filesystem(endpoint)
        filesystem.call_s3("create_bucket", Bucket="bucket")
        yield filesystem


def test_s3(bucket: Any) -> None:
    mixed().write_parquet("s3://bucket/rows", filesystem=bucket)
    assert len(bucket.ls("bucket/rows", refresh=True)) == 3
    back = data.read_parquet("s3://bucket/rows", filesystem=bucket)
    assert back.to_arrow().equals(mixed().to_arrow())


def test_s3_that_refuses_is_told_with_the_place(bucket: Any) -> None:
    with pytest.raises(DataError, match="s3://missing-bucket/rows"):
        mixed().write_parquet("s3://missing-bucket/rows", filesystem=bucket)


# -- failures -------------------------------------------------------------------------------


def fails_late(batch: dict[str, Any]) -> dict[str, Any]:
    if batch["id"].max() >= 8:
        raise RuntimeError("no more")
    return batch


def test_a_failed_write_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    mixed(4).write_parquet(tmp_path)
    before = files(tmp_path)
    with pytest.raises(DataError, match="no more"), pytest.warns(UserWarning, match="already"):
        mixed().select_columns(["id"]).map_batches(fails_late).write_parquet(tmp_path)
    assert files(tmp_path) == before


def test_a_failed_write_takes_back_what_it_uploaded() -> None:

    with pytest.raises(DataError, match="no more"):
        mixed().select_columns(["id"]).map_batches(fails_late).write_parquet("memory://taken-back")
    assert not fsspec.filesystem("memory").glob("/taken-back/*")


def test_files_have_no_valid_name_before_all_are_complete(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def looking(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append([path.name for path in files(tmp_path)])
        return batch

    mixed().select_columns(["id"]).map_batches(looking).write_parquet(tmp_path)
    assert any(seen)
    assert all(name.startswith(".") for names in seen for name in names)
    assert [path.suffix for path in files(tmp_path)] == [".parquet"] * 3


def test_blocks_without_rows_have_no_file_and_no_rows_still_have_columns(tmp_path: Path) -> None:
    mixed().filter(lambda row: row["id"] == 5).write_parquet(tmp_path / "one")
    assert len(files(tmp_path / "one")) == 1
    mixed().filter(expr="id > 100").write_parquet(tmp_path / "none")
    (path,) = files(tmp_path / "none")
    assert pq.read_table(path).schema.names == ["id", "x", "text", "flag"]
