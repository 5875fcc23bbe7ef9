"""Files of lines (CSV, JSON, text), cut into blocks that depend on nothing but bytes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import DataError
from paceline.data.read import read_csv, read_json, read_text
from paceline.data.sources import lines
from tests.data.reading import check_pieces, csv_of, json_of, rows_of, table_of, text_of


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_every_cut_gives_every_line_once(tmp_path: Path, newline: str, final: bool) -> None:
    numbers = [0, 1, 22, 333, 4, 5555555, 66, 7, 8, 99999]
    endings = newline if final else ""
    (tmp_path / "a.txt").write_bytes((newline.join(str(n) for n in numbers) + endings).encode())
    (tmp_path / "a.csv").write_bytes((newline.join(["n,m", *(f"{n},x{n}" for n in numbers)]) + endings).encode())
    (tmp_path / "a.json").write_bytes((newline.join(json.dumps({"n": n}) for n in numbers) + endings).encode())
    expected_csv = [{"n": n, "m": f"x{n}"} for n in numbers]
    for parallelism in range(1, 40):
        text = text_of(tmp_path / "a.txt", parallelism)
        assert len(text.blocks()) >= min(parallelism, 5)
        assert table_of(text)["text"].to_pylist() == [str(n) for n in numbers]
        assert rows_of(csv_of(tmp_path / "a.csv", parallelism)) == expected_csv
        assert table_of(json_of(tmp_path / "a.json", parallelism))["n"].to_pylist() == numbers
    check_pieces(text_of(tmp_path / "a.txt", 3))
    check_pieces(csv_of(tmp_path / "a.csv", 3))
    check_pieces(json_of(tmp_path / "a.json", 3))


def test_small_files_are_one_block_and_large_ones_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1000)
    (tmp_path / "a.csv").write_text("x\n" + "1\n" * 200)
    (tmp_path / "b.csv").write_text("x\n" + "1\n" * 2000)
    source = csv_of(tmp_path)
    assert [block.name.partition(", ")[2] for block in source.blocks()][:3] == [
        "", "bytes 0 to 800", "bytes 800 to 1,600",
    ]  # fmt: skip
    assert len(source.blocks()) == 6
    assert table_of(source).num_rows == 2200


@pytest.mark.parametrize("of", [csv_of, json_of])
def test_compressed_files_are_one_block(tmp_path: Path, of: Any) -> None:
    rows = 10_000
    content = {
        csv_of: "n\n" + "".join(f"{n}\n" for n in range(rows)),
        json_of: "".join(f'{{"n": {n}}}\n' for n in range(rows)),
    }
    (tmp_path / "a.gz").write_bytes(gzip.compress(content[of].encode()))
    source = of(tmp_path / "a.gz", 50)
    assert len(source.blocks()) == 1
    assert table_of(source)["n"].to_pylist() == list(range(rows))
    check_pieces(source)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content[of].encode())[:-2000])
    with pytest.raises(DataError, match=r"a\.gz"):
        table_of(of(tmp_path / "a.gz"))


def test_datasets_of_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    (tmp_path / "a.json").write_text('{"x": 3}\n')
    assert read_csv(tmp_path).take_all() == [{"x": 1}, {"x": 2}]
    assert read_json(tmp_path).take_all() == [{"x": 3}]
    assert read_text(tmp_path / "a.csv").count() == 3
