"""Columns from the names of directories, for all formats."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import data
from paceline.air import Checkpoint, FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import DataError
from paceline.data.datasource import Partitioning
from paceline.train import DataParallelTrainer
from tests.data.reading import check_pieces, plan_of


def write_countries(directory: Path, ending: str) -> Path:
    """Three files of two rows; `x` counts through all of them."""
    for number, country in enumerate(["de", "fr", "us"]):
        folder = directory / f"country={country}" / "month=09"
        folder.mkdir(parents=True)
        values = [2 * number, 2 * number + 1]
        lines = {"csv": ["x", *map(str, values)], "json": [json.dumps({"x": x}) for x in values]}.get(
            ending, [f"line {x}" for x in values]
        )
        (folder / f"part.{ending}").write_text("\n".join(lines) + "\n")
    return directory


@pytest.mark.parametrize(("read", "ending"), [(data.read_csv, "csv"), (data.read_json, "json")])
def test_directories_with_names_become_columns_of_csv_and_json(tmp_path: Path, read: Any, ending: str) -> None:
    dataset = read(str(write_countries(tmp_path, ending)))
    assert dataset.columns() == ["x", "country", "month"]
    assert dataset.take(3)[1:] == [
        {"x": 1, "country": "de", "month": "09"},
        {"x": 2, "country": "fr", "month": "09"},
    ]
    assert dataset.select_columns(["country"]).take_all()[-1] == {"country": "us"}
    assert dataset.count() == 6
    check_pieces(plan_of(dataset))


def test_directories_above_the_given_file_count_too(tmp_path: Path) -> None:
    write_countries(tmp_path, "csv")
    dataset = data.read_csv(tmp_path / "country=fr" / "month=09" / "part.csv")
    assert dataset.take(1) == [{"x": 2, "country": "fr", "month": "09"}]


def test_partitioning_none_leaves_the_columns_out(tmp_path: Path) -> None:
    assert data.read_csv(str(write_countries(tmp_path, "csv")), partitioning=None).columns() == ["x"]
    data.range(4).write_parquet(tmp_path / "p" / "year=2024")
    assert data.read_parquet(tmp_path / "p", partitioning=None).columns() == ["id"]


def test_a_column_of_the_files_wins(tmp_path: Path) -> None:
    (tmp_path / "x=9").mkdir()
    (tmp_path / "x=9" / "a.csv").write_text("x\n1\n")
    assert data.read_csv(tmp_path / "x=9" / "a.csv").take_all() == [{"x": 1}]


def test_directories_that_name_different_things_are_an_error(tmp_path: Path) -> None:
    for place in ("a=1", "b=2"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "f.csv").write_text("x\n1\n")
    with pytest.raises(DataError, match=r"a=1.*b=2.*partitioning=None"):
        data.read_csv(tmp_path)


def test_types_of_the_columns_can_be_chosen(tmp_path: Path) -> None:
    scheme = Partitioning("hive", field_types={"month": int})
    dataset = data.read_csv(str(write_countries(tmp_path, "csv")), partitioning=scheme)
    assert dataset.take(1) == [{"x": 0, "country": "de", "month": 9}]
    with pytest.raises(DataError, match="country='de' is not int"):
        data.read_csv(tmp_path, partitioning=Partitioning("hive", field_types={"country": int}))


def test_directories_are_the_labels_of_images(tmp_path: Path) -> None:
    from PIL import Image

    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(2):
            Image.new("L", (4, 4), number).save(tmp_path / label / f"{number}.png")
    scheme = Partitioning("dir", field_names=["class"], base_dir=str(tmp_path))
    dataset = data.read_images(str(tmp_path), size=(4, 4), partitioning=scheme)
    assert [row["class"] for row in dataset.take_all()] == ["cat", "cat", "dog", "dog"]
    check_pieces(plan_of(dataset))
    without_base = data.read_images(tmp_path, partitioning=Partitioning("dir", field_names=["class"]))
    assert without_base.unique("class") == ["cat", "dog"]


@pytest.mark.parametrize("read", [data.read_text, data.read_binary_files, data.read_numpy, data.read_parquet])
def test_other_formats_have_them_on_request(tmp_path: Path, read: Any) -> None:
    write_countries(tmp_path, "txt")
    if read is data.read_numpy:
        np.save(tmp_path / "country=de" / "month=09" / "a.npy", np.arange(3))
    if read is data.read_parquet:
        data.range(3).write_parquet(tmp_path / "country=de" / "month=09")
    dataset = read(tmp_path / "country=de", partitioning=Partitioning("hive", base_dir=str(tmp_path)))
    assert {"country": "de"}.items() <= dataset.take(1)[0].items()


def test_paths_as_a_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\n1\n"))
    (tmp_path / "b.csv").write_text("x\n2\n")
    rows = data.read_csv(tmp_path, include_paths=True).take_all()
    assert rows == [{"x": 1, "path": f"{tmp_path}/a.csv.gz"}, {"x": 2, "path": f"{tmp_path}/b.csv"}]
    data.range(2).write_parquet(tmp_path)
    assert str(tmp_path) in data.read_parquet(tmp_path, include_paths=True).take(1)[0]["path"]


def test_a_run_reads_each_partition_once_and_resumes_inside_one(tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def train_loop() -> None:
        shard = session.get_dataset_shard("train")
        for batch in shard.iter_batches(batch_size=1):
            with seen.open("a") as file:
                file.write(f"{batch['country'][0]}{batch['x'][0]} ")
            session.report({"x": int(batch["x"][0])}, checkpoint=Checkpoint.from_dict({"saved": True}))
            if batch["x"][0] == 2 and session.get_checkpoint() is None:
                raise RuntimeError("in the middle of fr")

    DataParallelTrainer(
        train_loop,
        datasets={"train": data.read_csv(str(write_countries(tmp_path / "in", "csv")))},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path), failure_config=FailureConfig(max_failures=1)),
    ).fit()
    assert seen.read_text().split() == ["de0", "de1", "fr2", "fr3", "us4", "us5"]
