"""WebDataset archives come back as they were written."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataError


def test_values_come_back(tmp_path: Path) -> None:
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    rows = [
        {"__key__": f"a/{n}", "txt": f"text {n}", "cls": n, "json": {"n": [n]}, "npy": np.ones(2) * n, "png": image}
        for n in range(3)
    ]
    data.from_items(rows, parallelism=2).write_webdataset(tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".tar", ".tar"]
    back = data.read_webdataset(tmp_path).take_all()
    for row, again in zip(rows, back, strict=True):
        assert (again["__key__"], again["txt"], again["cls"], again["json"]) == tuple(
            row[name] for name in ("__key__", "txt", "cls", "json")
        )
        np.testing.assert_array_equal(again["npy"], row["npy"])
        np.testing.assert_array_equal(again["png"], image)


def test_rows_without_keys_and_values_that_are_missing(tmp_path: Path) -> None:
    data.from_items([{"a.txt": "x", "bin": b"1"}, {"a.txt": None, "bin": b"2"}]).write_webdataset(tmp_path)
    with tarfile.open(next(tmp_path.iterdir())) as archive:
        assert archive.getnames() == ["000000.a.txt", "000000.bin", "000001.bin"]


def test_an_encoder_of_ones_own(tmp_path: Path) -> None:
    odd = data.from_items([{"score": 0.5}])
    with pytest.raises(DataError, match=r"'score'.*float.*encoder"):
        odd.write_webdataset(tmp_path / "a")
    odd.write_webdataset(tmp_path / "b", encoder=lambda row: {"txt": str(row["score"])})
    assert data.read_webdataset(tmp_path / "b").take_all() == [{"__key__": "000000", "txt": "0.5"}]
    with pytest.raises(ConfigError, match="encoder='gzip'"):
        odd.write_webdataset(tmp_path / "c", encoder="gzip")  # type: ignore[arg-type]
