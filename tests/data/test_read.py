"""Arguments that all read functions take."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataNotFoundError
from paceline.data.datasource import FastFileMetadataProvider


def test_settings_of_a_cluster_are_told_to_have_no_effect(tmp_path: Path) -> None:
    data.range(5).write_csv(tmp_path)
    with pytest.warns(UserWarning, match="ray_remote_args") as told:
        ds = data.read_csv(str(tmp_path), ray_remote_args={"num_cpus": 2})
    assert told[0].filename == __file__
    assert ds.count() == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.read_csv(str(tmp_path), ray_remote_args=None)


def test_missing_paths_can_be_left_out(tmp_path: Path) -> None:
    data.range(5).write_csv(tmp_path / "there")
    paths = [str(tmp_path / "there"), str(tmp_path / "gone"), str(tmp_path / "none-*.csv")]
    assert data.read_csv(paths, ignore_missing_paths=True).count() == 5
    with pytest.raises(DataNotFoundError, match="gone"):
        data.read_csv(paths)
    with pytest.raises(DataNotFoundError, match="gone"):
        data.read_csv(paths[1:], ignore_missing_paths=True)


@pytest.mark.parametrize("read", [data.read_csv, data.read_text, data.read_binary_files])
def test_compression_that_names_do_not_say(tmp_path: Path, read: Any) -> None:
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"x\n1\n"))
    dataset = read(tmp_path, arrow_open_stream_args={"compression": "gzip", "buffer_size": 4096})
    assert dataset.take(1)[0] in ({"x": 1}, {"text": "x"}, {"bytes": b"x\n1\n"})
    (tmp_path / "a.csv").rename(tmp_path / "a.csv.gz")
    raw = data.read_text(tmp_path, arrow_open_stream_args={"compression": None}, encoding="latin-1")
    assert "\x1f\x8b" in raw.take(1)[0]["text"]


def test_settings_for_opening_files_that_are_not_known(tmp_path: Path) -> None:
    data.range(5).write_csv(tmp_path)
    with pytest.raises(ConfigError, match=r"compression='zip'.*gzip"):
        data.read_csv(tmp_path, arrow_open_stream_args={"compression": "zip"})
    with pytest.raises(ConfigError, match=r"'metadata'.*filesystem="):
        data.read_csv(tmp_path, arrow_open_stream_args={"metadata": {}})
    with pytest.raises(ConfigError, match=r"read_parquet.*compression"):
        data.read_parquet(tmp_path, arrow_open_file_args={"compression": "gzip"})


def test_arguments_of_other_releases(tmp_path: Path) -> None:
    data.range(5).write_csv(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert data.read_csv(tmp_path, meta_provider=FastFileMetadataProvider()).count() == 5
        assert data.read_csv(tmp_path, override_num_blocks=1).count() == 5
    with pytest.warns(UserWarning, match="meta_provider"):
        data.read_csv(tmp_path, meta_provider=object())
    with pytest.warns(UserWarning, match="concurrency"):
        data.read_text(tmp_path, concurrency=4)
    with pytest.raises(ConfigError, match="randomize_block_order"):
        data.read_text(tmp_path, shuffle="files")
    with pytest.raises(TypeError, match=r"read_text.*'colour'"):
        data.read_text(tmp_path, colour="red")


def test_parquet_with_a_condition(tmp_path: Path) -> None:
    data.from_items([{"x": x, "y": -x} for x in range(5)]).write_parquet(tmp_path)
    dataset = data.read_parquet(tmp_path, columns=["y"], filter=pc.field("x") > 2)
    assert dataset.take_all() == [{"y": -3}, {"y": -4}]
    assert data.read_parquet_bulk([str(tmp_path)]).count() == 5
    for name in ("schema", "tensor_column_schema", "dataset_kwargs"):
        with pytest.raises(ConfigError, match=rf"{name}.*map_batches"):
            data.read_parquet(tmp_path, **{name: None})
    with pytest.warns(UserWarning, match="use_threads"):
        assert data.read_parquet(tmp_path, use_threads=False).count() == 5
