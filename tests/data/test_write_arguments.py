"""Arguments of writing, also those of older and newer programs: names of files, compression, settings."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data import datasource
from tests.data.writing import files, table


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
