"""Binary files: one row per file."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from paceline.air.errors import DataError
from paceline.data.block import ReadRequest
from paceline.data.read import read_binary_files
from paceline.data.sources.file_source import BinarySource
from paceline.data.sources.listing import list_files
from tests.data.reading import check_pieces, rows_of, table_of


def write_files(directory: Path, count: int) -> None:
    for number in range(count):
        (directory / f"f{number}.bin").write_bytes(b"%d" % number)


def test_binary_files_and_their_paths(tmp_path: Path) -> None:
    write_files(tmp_path, 12)
    source = pickle.loads(pickle.dumps(BinarySource(list_files(tmp_path), 5, True)))
    assert [block.rows for block in source.blocks()] == [3, 3, 3, 3]
    assert rows_of(source)[10] == {"bytes": b"10", "path": str(tmp_path / "f10.bin")}
    check_pieces(source)
    assert BinarySource(list_files(tmp_path), -1, False).schema() == pa.schema({"bytes": pa.binary()})
    assert len(BinarySource(list_files(tmp_path), -1, False).blocks()) == 1


def test_chunks_of_large_files_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.data.sources.file_source.CHUNK_BYTES", 2)
    write_files(tmp_path, 5)
    source = BinarySource(list_files(tmp_path), -1, False)
    assert [chunk.num_rows for chunk in source.read(0, ReadRequest())] == [2, 2, 1]


def test_paths_and_counts_do_not_read_the_files(tmp_path: Path) -> None:
    write_files(tmp_path, 3)
    source = BinarySource(list_files(tmp_path), -1, True)
    (tmp_path / "f1.bin").unlink()
    assert table_of(source, columns=("path",)).num_rows == 3
    assert sum(block.rows or 0 for block in source.blocks()) == 3
    with pytest.raises(DataError, match=r"f1\.bin.*deleted"):
        table_of(source)


def test_datasets_of_files(tmp_path: Path) -> None:
    write_files(tmp_path, 3)
    assert read_binary_files(tmp_path).take_all() == [{"bytes": b"0"}, {"bytes": b"1"}, {"bytes": b"2"}]
