"""Partition schemes, parsers and filters by themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataError, DataNotFoundError
from paceline.data.datasource import Partitioning, PartitionStyle, PathPartitionFilter, PathPartitionParser


def test_hive_paths() -> None:
    parse = PathPartitionParser.of()
    assert parse("s3://bucket/year=2022/month=09/f.csv") == {"year": "2022", "month": "09"}
    assert parse("/data/f.csv") == {}
    assert parse("a=x%2Fy/b=__HIVE_DEFAULT_PARTITION__/f") == {"a": "x/y", "b": None}
    below = PathPartitionParser.of(PartitionStyle.HIVE, base_dir="bucket/year=2022")
    assert below("s3://bucket/year=2022/month=09/f.csv") == {"month": "09"}
    assert below("s3://other/month=09/f.csv") == {}
    named = PathPartitionParser.of("hive", field_names=["year", "month"])
    with pytest.raises(DataError, match=r"\['month', 'year'\].*field_names"):
        named("month=1/year=2/f")


def test_paths_of_levels() -> None:
    parse = PathPartitionParser.of("dir", base_dir="s3://bucket/root", field_names=["year", None, "day"])
    assert parse("bucket/root/2022/x/30/f.csv") == {"year": "2022", "day": "30"}
    assert parse("bucket/root/f.csv") == {}
    with pytest.raises(DataError, match=r"2 directories.*field_names has 3.*base_dir"):
        parse("bucket/root/2022/x/f.csv")
    with pytest.raises(ConfigError, match="field_names"):
        Partitioning("dir")
    with pytest.raises(ConfigError, match=r"'flat'.*hive"):
        Partitioning("flat")


def test_a_relative_base_directory_is_one_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parse = PathPartitionParser.of("dir", base_dir="root", field_names=["year"])
    assert parse(f"{os.getcwd()}/root/2022/f.csv") == {"year": "2022"}


def write_years(directory: Path) -> Path:
    for year in (2022, 2023):
        (directory / f"year={year}").mkdir()
        (directory / f"year={year}" / "a.csv").write_text(f"x\n{year}\n")
        (directory / f"year={year}" / "README.md").write_text("no table")
    return directory


def test_a_filter_chooses_partitions(tmp_path: Path) -> None:
    newest = PathPartitionFilter.of(lambda values: values.get("year") == "2023")
    assert newest.parser("year=1/f") == {"year": "1"}
    dataset = data.read_csv(write_years(tmp_path), partition_filter=newest)
    assert dataset.take_all() == [{"x": 2023, "year": "2023"}]
    with pytest.raises(DataNotFoundError, match=r"partition_filter.*4 files"):
        data.read_csv(tmp_path, partition_filter=PathPartitionFilter.of(lambda values: False))
    with pytest.raises(ConfigError, match="partition_filter"):
        data.read_csv(tmp_path, partition_filter="2023")  # type: ignore[arg-type]


def test_a_filter_may_be_about_endings(tmp_path: Path) -> None:
    from paceline.data.datasource import FileExtensionFilter

    (tmp_path / "a.data").write_text("x\n1\n")
    (tmp_path / "b.csv").write_text("x\n2\n")
    assert data.read_csv(tmp_path, partition_filter=FileExtensionFilter("data")).take_all() == [{"x": 1}]
    assert data.read_csv(tmp_path, file_extensions=["data"]).take_all() == [{"x": 1}]
    own = data.read_csv(tmp_path, partition_filter=lambda paths: [path for path in paths if "a.data" in path])
    assert own.take_all() == [{"x": 1}]
    either = FileExtensionFilter(["data"], allow_if_no_extension=True)
    assert either(["a/x.data", "a/x", "a/x.csv"]) == ["a/x.data", "a/x"]
