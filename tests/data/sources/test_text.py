"""Text: lines in any encoding."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.air.errors import ConfigError, DataError
from paceline.data.read import read_text
from tests.data.reading import check_pieces, rows_of, table_of, text_of


def test_text_lines(tmp_path: Path) -> None:
    content = "\ufefffirst\n\n  second \r\n\tthird\r\r\n\r\nlast ü"
    (tmp_path / "a.txt").write_bytes(content.encode())
    kept = text_of(tmp_path / "a.txt", drop_empty_lines=False)
    assert table_of(kept)["text"].to_pylist() == ["first", "", "  second ", "\tthird\r", "", "last ü"]
    assert table_of(text_of(tmp_path / "a.txt"))["text"].to_pylist() == ["first", "  second ", "\tthird\r", "last ü"]
    check_pieces(kept)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8-sig", "cp1252", "shift-jis", "utf-8"])
def test_text_encodings(tmp_path: Path, encoding: str) -> None:
    words = ["one", "two Ā" if "utf" in encoding else "two", "three"] * 5
    (tmp_path / "a.txt").write_bytes("\n".join(words).encode(encoding))
    for parallelism in (1, 4):
        assert table_of(text_of(tmp_path / "a.txt", parallelism, encoding))["text"].to_pylist() == words


def test_text_in_another_encoding_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("größe\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.txt.*utf-8.*encoding="):
        table_of(text_of(tmp_path))
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"a\.txt.*utf-16"):
        table_of(text_of(tmp_path, encoding="utf-16"))
    with pytest.raises(ConfigError, match="encoding='klingon'"):
        read_text(tmp_path, encoding="klingon")


def test_empty_text_files_have_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    assert rows_of(text_of(tmp_path)) == []


def test_lines_of_blanks_count_as_empty(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first\n   \n\t\n\nlast \n")
    assert table_of(text_of(tmp_path / "a.txt"))["text"].to_pylist() == ["first", "last "]
    kept = table_of(text_of(tmp_path / "a.txt", drop_empty_lines=False))
    assert kept["text"].to_pylist() == ["first", "   ", "\t", "", "last "]
