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
from paceline.data import datasource
from paceline.data.dataset import Dataset
from paceline.data.sources.memory import TableSource
from tests.storage.s3_server import s3_filesystem, s3_server


def table(columns: dict[str, Any], block_rows: int = 4) -> Dataset:
    return Dataset(TableSource(pa.table(columns), block_rows))


def mixed(rows: int = 10) -> Dataset:
    return table(
        {
            "id": np.arange(rows),
            "x": [None if i == 3 else i / 3 for i in range(rows)],
            "text": [f'line {i}, "quoted"' for i in range(rows)],
            "flag": [i % 2 == 0 for i in range(rows)],
        }
    )


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


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


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda ds, path: ds.write_parquet(None), "write_parquet.*path.*None"),
        (lambda ds, path: ds.write_csv(path, sep=";"), "write_csv.*'sep'.*write_options"),
        (
            lambda ds, path: ds.write_parquet(path, colour="red"),
            r"write_parquet.*pyarrow\.parquet\.ParquetWriter.*colour",
        ),
    ],
)
def test_arguments_of_writing_that_cannot_work(write: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        write(data.range(5), tmp_path)
    assert not list(tmp_path.iterdir())


# -- arguments of older and newer programs ---------------------------------------------------


class ByIndex(datasource.BlockWritePathProvider):
    def _get_write_path_for_block(  # type: ignore[override]  # the form of the older releases
        self, base_path: str, *, block_index: int, file_format: str, dataset_uuid: str, filesystem: Any, block: Any
    ) -> str:
        return f"{base_path}/half={block_index}/rows-{block.num_rows}.{file_format}"


class ByTask(datasource.FilenameProvider):
    def get_filename_for_block(self, block: Any, task_index: int, block_index: int) -> str:
        return f"{task_index}-{block_index}.csv"


class ByWrite(datasource.FilenameProvider):
    def get_filename_for_block(self, block: Any, write_uuid: str, task_index: int, block_index: int) -> str:  # type: ignore[override]
        return f"{task_index}-{len(write_uuid)}.csv"


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"block_path_provider": ByIndex()}, ["half=0/rows-4.csv", "half=1/rows-4.csv"]),
        ({"filename_provider": ByTask()}, ["0-0.csv", "1-0.csv"]),
        ({"filename_provider": ByWrite()}, ["0-32.csv", "1-32.csv"]),
    ],
)
@pytest.mark.parametrize("remote", [False, True])
def test_names_of_files_can_be_chosen(tmp_path: Path, settings: dict[str, Any], names: list[str], remote: bool) -> None:
    place = f"memory://{tmp_path.name}" if remote else str(tmp_path)
    data.range(8, parallelism=2).write_csv(place, **settings)
    dataset = data.read_csv(place)
    assert [file.partition(f"{tmp_path.name}/")[2] for file in dataset.input_files()] == names
    assert dataset.sum("id") == 28


def test_names_that_cannot_be(tmp_path: Path) -> None:
    class Same(datasource.FilenameProvider):
        def get_filename_for_block(self, block: Any, task_index: int, block_index: int) -> str:
            return "rows.csv"

    class Outside(datasource.FilenameProvider):
        def get_filename_for_block(self, block: Any, task_index: int, block_index: int) -> str:
            return "../rows.csv"

    dataset = data.range(8, parallelism=2)
    with pytest.raises(ConfigError, match=r"block \d and block \d.*'rows\.csv'"):
        dataset.write_csv(tmp_path / "a", filename_provider=Same())
    assert files(tmp_path / "a") == []
    with pytest.raises(ConfigError, match=r"filename_provider.*'\.\./rows\.csv'"):
        dataset.write_csv(tmp_path / "a", filename_provider=Outside())
    with pytest.raises(ConfigError, match="get_filename_for_block"):
        dataset.write_csv(tmp_path / "a", filename_provider="rows.csv")
    with pytest.raises(ConfigError, match="not both"):
        dataset.write_csv(tmp_path / "a", filename_provider=Same(), block_path_provider=ByIndex())


@pytest.mark.parametrize("remote", [False, True])
def test_a_failed_write_deletes_no_file_that_was_there_before(tmp_path: Path, remote: bool) -> None:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 8:
            raise ValueError("row 8")
        return row

    place = f"memory://{tmp_path.name}" if remote else str(tmp_path)
    data.range(8, parallelism=2).write_csv(place, filename_provider=ByTask())
    with (
        pytest.warns(UserWarning, match="unless they have the name of a new one"),
        pytest.raises(DataError, match="row 8"),
    ):
        data.range(9, parallelism=3).map(fails).write_csv(place, filename_provider=ByTask())
    dataset = data.read_csv(place)
    assert [file.rpartition("/")[2] for file in dataset.input_files()] == ["0-0.csv", "1-0.csv"]
    assert remote or dataset.sum("id") == 28  # an upload has replaced what was there


def test_a_file_that_cannot_be_compressed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("paceline.data.write_files.shutil.copyfileobj", full)
    with pytest.raises(DataError, match="no space left"):
        data.range(8).write_json(tmp_path, arrow_open_stream_args={"compression": "gzip"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_files_can_be_compressed(tmp_path: Path, codec: str) -> None:
    data.range(8, parallelism=2).write_json(tmp_path, arrow_open_stream_args={"compression": codec})
    assert len(files(tmp_path)) == 2
    assert data.read_json(tmp_path).sum("id") == 28
    assert data.read_json(tmp_path, arrow_open_stream_args={"compression": codec}).sum("id") == 28
    with pytest.raises(ConfigError, match=r'write_parquet.*compression="gzip"'):
        data.range(8).write_parquet(tmp_path, arrow_open_stream_args={"compression": "gzip"})
    with pytest.raises(ConfigError, match="'zip'"):
        data.range(8).write_csv(tmp_path, arrow_open_stream_args={"compression": "zip"})


def test_settings_from_a_function(tmp_path: Path) -> None:
    dataset = data.range(3, parallelism=1)
    dataset.write_parquet(tmp_path / "p", arrow_parquet_args_fn=lambda: {"compression": "gzip"}, compression="none")
    assert pq.read_metadata(files(tmp_path / "p")[0]).row_group(0).column(0).compression == "GZIP"
    dataset.write_csv(tmp_path / "c", arrow_csv_args_fn=lambda: {"write_options": pa_csv.WriteOptions(delimiter=";")})
    assert files(tmp_path / "c")[0].read_text().splitlines()[:2] == ['"id"', "0"]
    dataset.write_json(tmp_path / "j", pandas_json_args_fn=lambda: {"orient": "columns"})
    assert json.loads(files(tmp_path / "j")[0].read_text()) == {"id": {"0": 0, "1": 1, "2": 2}}


def test_json_as_pandas_writes_it(tmp_path: Path) -> None:
    dataset = table({"when": [datetime.datetime(2024, 1, 2)], "x": [0.123456]})
    dataset.write_json(tmp_path, date_format="iso", double_precision=2)
    assert json.loads(files(tmp_path)[0].read_text()) == {"when": "2024-01-02T00:00:00.000", "x": 0.12}
    with pytest.raises(ConfigError, match=r"to_json.*'colour'"):
        dataset.write_json(tmp_path / "b", colour="red")


def test_arguments_without_effect_and_without_a_place(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="ray_remote_args"):
        data.range(3).write_csv(tmp_path, ray_remote_args={"num_cpus": 1})
    for name, advice in (("min_rows_per_file", "repartition"), ("partition_cols", "group"), ("mode", "new directory")):
        with pytest.raises(ConfigError, match=rf"{name}.*{advice}"):
            data.range(3).write_parquet(tmp_path, **{name: 5})
    with pytest.raises(TypeError, match=r"write_numpy.*'colour'"):
        data.range(3).write_numpy(tmp_path, column="id", colour=1)
