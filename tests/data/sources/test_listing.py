"""Which files are read: paths, directories, patterns, URIs; and files that are not what was listed."""

from __future__ import annotations

import os
import pickle
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import fs

from paceline import data
from paceline.air import session
from paceline.air.errors import ConfigError, DataError, DataNotFoundError
from paceline.data.read import read_parquet
from paceline.data.sources.csv_files import CsvSource
from paceline.data.sources.listed_file import open_checked
from paceline.data.sources.listing import list_files
from paceline.data.sources.parquet import ParquetSource
from tests.data.reading import table_of, write_parts
from tests.storage.s3_server import s3_filesystem, s3_server


def names(found: Any) -> list[str]:
    return [os.path.basename(entry.path) for entry in found]


def fill(directory: Path, *paths: str) -> None:
    for path in paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(b"x")


def test_a_directory_is_walked_without_what_is_hidden(tmp_path: Path) -> None:
    fill(tmp_path, "part-10.csv", "part-9.csv", "sub/part-1.CSV", "_year=1/part-2.csv")
    fill(tmp_path, ".hidden.csv", "_SUCCESS", "_temporary/x.csv", ".git/x.csv", ".a.csv.crc", "a.csv.crc", "notes.md")
    assert names(list_files(tmp_path, None, (".csv",))) == ["part-2.csv", "part-9.csv", "part-10.csv", "part-1.CSV"]
    assert names(list_files(tmp_path)) == ["part-2.csv", "notes.md", "part-9.csv", "part-10.csv", "part-1.CSV"]


def test_a_list_keeps_its_order_and_may_repeat(tmp_path: Path) -> None:
    fill(tmp_path, "a", "b", "c/2", "c/1")
    assert names(list_files([tmp_path / "b", str(tmp_path / "c"), tmp_path / "a", tmp_path / "b"])) == [
        "b", "1", "2", "a", "b",
    ]  # fmt: skip


def test_patterns(tmp_path: Path) -> None:
    fill(tmp_path, "p-2.csv", "p-10.csv", "p-1.txt", "q/p-3.csv", "_p.csv", "odd[1].csv")
    assert names(list_files(f"{tmp_path}/p-*.csv")) == ["p-2.csv", "p-10.csv"]
    assert names(list_files(f"{tmp_path}/**/p-[23].csv")) == ["p-2.csv", "p-3.csv"]
    assert names(list_files(f"{tmp_path}/odd[1].csv")) == ["odd[1].csv"]
    assert names(list_files(f"{tmp_path}/*", None, (".csv",))) == [
        "odd[1].csv",
        "p-1.txt",
        "p-2.csv",
        "p-10.csv",
        "p-3.csv",
    ]


def test_home_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "here.csv")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    expected = [str(tmp_path / "here.csv")]
    assert [entry.path for entry in list_files("~/here.csv")] == expected
    assert [entry.path for entry in list_files("here.csv")] == expected
    assert [entry.path for entry in list_files(f"file://{tmp_path}/here.csv")] == expected


def test_a_relative_path_in_a_worker_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    advice = "directory of its own"
    with pytest.raises(DataNotFoundError) as outside:
        data.read_csv("missing.csv")
    monkeypatch.setattr(session, "current", object)
    with pytest.raises(DataNotFoundError) as inside:
        data.read_csv("missing.csv")
    with pytest.raises(DataNotFoundError) as absolute:
        data.read_csv(str(tmp_path / "missing.csv"))
    assert [advice in str(each.value) for each in (outside, inside, absolute)] == [False, True, False]


def test_linked_directories_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    fill(tmp_path, "there/a.csv", "here/b.csv")
    (tmp_path / "here" / "link").symlink_to(tmp_path / "there")
    assert names(list_files(tmp_path / "here")) == ["b.csv", "a.csv"]
    (tmp_path / "there" / "up").symlink_to(tmp_path / "there")
    with pytest.raises(DataError, match=r"there/up.*link|link/up.*link"):
        list_files(tmp_path / "here")


def test_a_missing_path_is_named_with_what_is_near(tmp_path: Path) -> None:
    fill(tmp_path, "sales-2024.parquet")
    with pytest.raises(DataNotFoundError, match=r"sales-2023\.parquet.*sales-2024\.parquet\?"):
        list_files(tmp_path / "sales-2023.parquet")
    with pytest.raises(FileNotFoundError, match="nowhere/at-all"):
        read_parquet(tmp_path / "nowhere" / "at-all")


def test_nothing_that_matches(tmp_path: Path) -> None:
    fill(tmp_path, "a.txt", "_b.csv")
    with pytest.raises(DataNotFoundError, match=r"/\*\.parquet"):
        list_files(f"{tmp_path}/*.parquet")
    with pytest.raises(DataNotFoundError, match=r"\.csv, \.tsv"):
        list_files(tmp_path, None, (".csv", ".tsv"))


@pytest.mark.parametrize("paths", [[], "", [""], 3, [3], None])
def test_what_is_no_path(paths: Any) -> None:
    with pytest.raises(ConfigError, match="path"):
        list_files(paths)


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (pd.DataFrame({"x": [1]}), "paths.*DataFrame.*from_pandas"),
        ({"x": 1}, "paths.*dict"),
        (pd.Series(["x"]), "paths.*Series"),
    ],
)
def test_objects_in_place_of_paths_are_named(paths: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_parquet(paths)


def test_unknown_protocols(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nosuch://x/y"):
        list_files("nosuch://x/y")


def test_a_changed_or_deleted_file_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, "grown", "touched", "deleted", "same")
    grown, touched, deleted, same = list_files([tmp_path / name for name in ("grown", "touched", "deleted", "same")])
    (tmp_path / "grown").write_bytes(b"xx")
    os.utime(tmp_path / "touched", ns=(1, 1))
    (tmp_path / "deleted").unlink()
    with pytest.raises(DataError, match=r"grown changed.*1 bytes.*2 bytes"):
        open_checked(grown)
    with pytest.raises(DataError, match=r"touched changed.*mtime_ns=1"):
        open_checked(touched)
    with pytest.raises(DataError, match="deleted was deleted"):
        open_checked(deleted)
    with open_checked(same) as file:
        assert file.read() == b"x"


# -- other file systems -------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[str]:
    root = f"memory://{uuid.uuid4().hex}"
    yield root
    fsspec.filesystem("memory").rm(root, recursive=True)


def test_memory_uris(memory: str) -> None:
    store = fsspec.filesystem("memory")
    for name in ("b-10.csv", "b-9.csv", "sub/c.csv", "_x.csv"):
        store.pipe_file(f"{memory}/{name}", b"x\n1\n")
    assert names(list_files(memory, None, (".csv",))) == ["b-9.csv", "b-10.csv", "c.csv"]
    assert names(list_files(f"{memory}/b-*.csv")) == ["b-9.csv", "b-10.csv"]
    assert names(list_files([f"{memory}/sub/c.csv", f"{memory}/b-9.csv"])) == ["c.csv", "b-9.csv"]
    assert table_of(CsvSource(list_files(memory), -1, {}))["x"].to_pylist() == [1, 1, 1]
    with pytest.raises(DataNotFoundError, match=r"b-8\.csv.*b-9\.csv"):
        list_files(f"{memory}/b-8.csv")
    with pytest.raises(DataNotFoundError, match=r"memory://.*/q\*"):
        list_files(f"{memory}/q*")
    (entry,) = list_files(f"{memory}/b-9.csv")
    store.pipe_file(f"{memory}/b-9.csv", b"x\n22\n")
    with pytest.raises(DataError, match=r"memory://.*b-9\.csv changed"):
        open_checked(entry)


def test_filesystem_objects_of_pyarrow(tmp_path: Path) -> None:
    write_parts(tmp_path / "data", files=2)
    local = ParquetSource(list_files(str(tmp_path / "data"), fs.LocalFileSystem()))
    assert local.files[0].filesystem is None
    below = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    source = pickle.loads(pickle.dumps(ParquetSource(list_files("data", below, (".parquet",)))))
    assert table_of(source).num_rows == table_of(local).num_rows == 40
    with pytest.raises(DataNotFoundError, match="nope"):
        list_files("nope", below)


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    with s3_server() as endpoint:
        filesystem = s3_filesystem(endpoint)
        filesystem.call_s3("create_bucket", Bucket="lake")
        yield filesystem


def test_s3_by_uri_pattern_and_directory(s3: Any, tmp_path: Path) -> None:
    for path in write_parts(tmp_path, files=3):
        s3.put_file(str(path), f"lake/sales/{path.name}")
    for paths in ("s3://lake/sales", "s3://lake/sales/*.parquet", "lake/sales/"):
        source = pickle.loads(pickle.dumps(ParquetSource(list_files(paths, s3, (".parquet",)))))
        assert source.files[0].label == "s3://lake/sales/part-0.parquet"
        assert table_of(source)["id"].to_pylist() == list(range(60))
    with pytest.raises(DataNotFoundError, match=r"part-9\.parquet.*part-\d\.parquet"):
        list_files("s3://lake/sales/part-9.parquet", s3)
    with pytest.raises(DataNotFoundError, match="s3://no-such-bucket/x"):
        list_files("s3://no-such-bucket/x", s3)


def test_s3_notices_changed_objects_before_and_after_opening(s3: Any, tmp_path: Path) -> None:
    (path,) = write_parts(tmp_path, files=1)
    s3.put_file(str(path), "lake/one/a.parquet")
    source = ParquetSource(list_files("s3://lake/one/a.parquet", s3))
    opened = open_checked(source.files[0], ranges=True)
    s3.pipe_file("lake/one/a.parquet", path.read_bytes()[:-1] + b"X")  # as long as before
    with pytest.raises(DataError, match=r"s3://lake/one/a\.parquet changed.*ETag"):
        source.blocks()
    with pytest.raises(OSError, match=r"no longer exists"):
        opened.read()
    opened.close()
    s3.rm("lake/one/a.parquet")
    with pytest.raises(DataError, match="deleted"):
        source.blocks()


def test_s3_lines_are_cut_into_blocks(s3: Any) -> None:
    rows = 20_000
    s3.pipe_file("lake/lines.csv", b"x,y\n" + b"".join(b"%d,abcdefgh\n" % number for number in range(rows)))
    source = CsvSource(list_files("s3://lake/lines.csv", s3), 4, {})
    assert len(source.blocks()) == 4
    table = table_of(source)
    assert table["x"].to_pylist() == list(range(rows))
    assert table.schema == pa.schema({"x": pa.int64(), "y": pa.string()})


def test_a_server_that_does_not_answer_is_no_missing_file() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with pytest.raises(DataError, match=r"reached.*connect") as caught:
        data.read_csv(f"http://127.0.0.1:{port}/a.csv")
    assert not isinstance(caught.value, DataNotFoundError)


def test_a_filesystem_that_cannot_be_made_is_told_in_one_line() -> None:
    class Unreachable(fsspec.AbstractFileSystem):  # type: ignore[misc]
        protocol = "unreachable"

        def __init__(self, **settings: Any) -> None:
            raise OSError("no name node\n  at java.lang.Thread\n  at java.lang.Object")

    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    with pytest.raises(DataError, match=r"unreachable://a/b\.csv.*OSError: no name node\.$"):
        data.read_csv("unreachable://a/b.csv")
