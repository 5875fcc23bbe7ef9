"""WebDataset shards: files of one name are a row."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paceline import data
from paceline.air.errors import DataError
from paceline.data.read import read_webdataset
from paceline.data.sources.listing import list_files
from paceline.data.sources.webdataset import WebDatasetSource
from paceline.data.tensors import tensor_to_numpy
from tests.data.reading import check_pieces, rows_of, table_of


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> None:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def npy(values: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


def web_of(path: Path, decoder: bool = True) -> WebDatasetSource:
    return WebDatasetSource(list_files(path), decoder)


def same_rows(left: pa.Table, right: pa.Table) -> bool:
    return bool(left.schema == right.schema and left.to_pylist() == right.to_pylist())


@pytest.mark.parametrize(("name", "mode"), [("a.tar", "w"), ("a.tar.gz", "w:gz")])
def test_files_of_one_name_are_a_row(tmp_path: Path, name: str, mode: str) -> None:
    files: dict[str, bytes] = {}
    for n in range(5):
        files |= {
            f"./train/{n}.txt": b"word \xc3\xbc",
            f"./train/{n}.cls": b" 7\n",
            f"./train/{n}.meta.json": json.dumps({"n": n, "at": [1, 2]}).encode(),
            f"./train/{n}.npy": npy(np.arange(n + 1)),
            f"./train/{n}.dat": b"\x00\xff",
        }
    write_tar(tmp_path / name, {".hidden": b"x", **files}, mode)
    source = pickle.loads(pickle.dumps(web_of(tmp_path)))
    assert source.schema().names == ["__key__", "txt", "cls", "meta.json", "npy", "dat"]
    row = rows_of(source, columns=("__key__", "txt", "cls", "meta.json", "dat"))[2]
    assert row == {
        "__key__": "train/2", "txt": "word ü", "cls": 7, "meta.json": {"n": 2, "at": [1, 2]}, "dat": b"\x00\xff",
    }  # fmt: skip
    arrays = tensor_to_numpy(table_of(source)["npy"].combine_chunks(), copy=False)
    assert [array.tolist() for array in arrays] == [list(range(n + 1)) for n in range(5)]
    check_pieces(source, same_rows)
    assert rows_of(web_of(tmp_path, decoder=False))[2]["cls"] == b" 7\n"


def test_images_in_shards(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image_module.fromarray(np.full((4, 5, 3), 9, np.uint8)).save(out, "PNG")
    write_tar(tmp_path / "a.tar", {"x.png": out.getvalue(), "x.cls": b"1"})
    (cell,) = tensor_to_numpy(table_of(web_of(tmp_path))["png"].combine_chunks(), copy=False)
    assert cell.shape == (4, 5, 3)
    assert (cell == 9).all()


def test_rows_may_lack_files_but_not_bring_new_ones(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"a", "1.cls": b"1", "2.txt": b"b"})
    write_tar(tmp_path / "b.tar", {"3.cls": b"3"})
    expected = [("1", "a", 1), ("2", "b", None), ("3", None, 3)]
    assert [tuple(row.values()) for row in rows_of(web_of(tmp_path))] == expected
    write_tar(tmp_path / "b.tar", {"3.new": b"3"})
    with pytest.raises(DataError, match=r"b\.tar.*'new'"):
        rows_of(web_of(tmp_path))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1.cls": b"one"}, r"a\.tar, 1\.cls.*decoded"),
        ({"1.json": b"{"}, r"a\.tar, 1\.json.*decoded"),
        ({"1.npy": b"x"}, r"a\.tar, 1\.npy.*decoded"),
        ({"1.txt": b"\xff"}, r"a\.tar, 1\.txt.*decoded"),
    ],
)
def test_content_that_cannot_be_decoded(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    write_tar(tmp_path / "a.tar", files)
    with pytest.raises(DataError, match=message):
        rows_of(web_of(tmp_path))


def test_damaged_archives(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"a\.tar.*tar archive"):
        rows_of(web_of(tmp_path))
    write_tar(tmp_path / "a.tar", {"1.dat": bytes(5000)})
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:3000])
    with pytest.raises(DataError, match=r"a\.tar.*tar archive"):
        rows_of(web_of(tmp_path))


def test_read_webdataset_gives_a_dataset(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.txt": b"a"})
    assert read_webdataset(tmp_path).take_all() == [{"__key__": "1", "txt": "a"}]


def test_an_empty_array_in_a_shard_is_told_with_its_place(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("a.npy"), io.BytesIO(b""))
    with pytest.raises(DataError, match=r"shard\.tar, a\.npy.*decoded"):
        data.read_webdataset(tmp_path).take_all()
