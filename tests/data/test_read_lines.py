"""CSV, JSON and text: files of lines, cut into blocks that depend on nothing but bytes."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pytest

from paceline.air.errors import ConfigError, DataError
from paceline.data.block import ReadRequest
from paceline.data.read import read_csv, read_json, read_text
from paceline.data.sources import lines
from paceline.data.sources.csv_files import CsvSource
from paceline.data.sources.json_lines import JsonSource
from paceline.data.sources.listing import list_files
from paceline.data.sources.text import TextSource
from tests.data.reading import check_pieces, rows_of, table_of


def csv_of(path: Path | list[Path], parallelism: int = -1, **options: Any) -> CsvSource:
    return CsvSource(list_files(path), parallelism, options)


def json_of(path: Path | list[Path], parallelism: int = -1, **options: Any) -> JsonSource:
    return JsonSource(list_files(path), parallelism, options)


def text_of(path: Path, parallelism: int = -1, encoding: str = "utf-8", drop_empty_lines: bool = True) -> TextSource:
    return TextSource(list_files(path), parallelism, encoding, drop_empty_lines)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_SMALLEST_BLOCK", 1)
    monkeypatch.setattr(lines, "_SEARCH_STEP", 3)
    monkeypatch.setattr(lines, "_READ_STEP", 7)


# -- blocks -------------------------------------------------------------------------------


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
    with pytest.raises(DataError, match=r"a.gz cannot be read"):
        table_of(of(tmp_path / "a.gz"))


# -- csv ----------------------------------------------------------------------------------


def test_csv_types_come_from_the_first_rows_and_hold_for_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n")
    (tmp_path / "b.csv").write_text("x,y\n1,2024-01-02\n")
    (tmp_path / "c.csv").write_text("y,x\n2024-01-03,2\n")
    source = csv_of(tmp_path)
    assert source.schema() == pa.schema({"x": pa.int64(), "y": pa.date32()})
    assert table_of(source)["x"].to_pylist() == [1, 2]
    (tmp_path / "d.csv").write_text("x,y\n2.5,2024-01-04\n")
    with pytest.raises(DataError, match=r"d.csv cannot be read as CSV.*'x'.*int64.*2\.5.*column_types"):
        table_of(csv_of(tmp_path))
    options = pacsv.ConvertOptions(column_types={"x": pa.float32()})
    assert table_of(csv_of(tmp_path, convert_options=options))["x"].to_pylist() == [1.0, 2.0, 2.5]


def test_csv_types_are_inferred_from_megabytes_not_from_the_first_block(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n" + "1\n" * 1_000_000 + "0.5\n")
    assert table_of(csv_of(tmp_path / "a.csv")).num_rows == 1_000_001


@pytest.mark.parametrize(
    ("header", "message"), [("x", "b.csv has no column 'y'"), ("x,y,z", "b.csv has an additional column 'z'")]
)
def test_csv_files_with_other_columns_are_refused(tmp_path: Path, header: str, message: str) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text(f"{header}\n{header.replace('x', '3').replace('y', '4').replace('z', '5')}\n")
    with pytest.raises(DataError, match=message):
        table_of(csv_of(tmp_path))
    options = pacsv.ConvertOptions(include_columns=["x"])
    assert table_of(csv_of(tmp_path, convert_options=options))["x"].to_pylist() == [1, 3]


@pytest.mark.usefixtures("small_blocks")
def test_csv_options_of_arrow(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('1;"two\nlines"\n2;b\n')
    options = {
        "read_options": pacsv.ReadOptions(column_names=["n", "s"]),
        "parse_options": pacsv.ParseOptions(delimiter=";", newlines_in_values=True),
    }
    source = pickle.loads(pickle.dumps(csv_of(path, 10, **options)))
    assert len(source.blocks()) == 1
    assert rows_of(source) == [{"n": 1, "s": "two\nlines"}, {"n": 2, "s": "b"}]
    path.write_text("# made by hand\nn\n" + "".join(f"{n}\n" for n in range(20)))
    skipping = {"read_options": pacsv.ReadOptions(skip_rows=1)}
    assert table_of(csv_of(path, 10, **skipping))["n"].to_pylist() == list(range(20))
    path.write_text("".join(f"{n},x\n" for n in range(20)))
    generated = {"read_options": pacsv.ReadOptions(autogenerate_column_names=True)}
    assert len(csv_of(path, 5, **generated).blocks()) >= 5
    assert table_of(csv_of(path, 5, **generated))["f0"].to_pylist() == list(range(20))
    path.write_bytes("größe\nßß\n".encode("utf-16"))
    encoded = {"read_options": pacsv.ReadOptions(encoding="utf-16")}
    assert rows_of(csv_of(path, 5, **encoded)) == [{"größe": "ßß"}]


def test_csv_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n1,2,3\n")
    with pytest.raises(DataError, match=r"a.csv cannot be read as CSV: .*Expected 2 columns, got 3"):
        table_of(csv_of(tmp_path))
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(DataError, match=r"a.csv: all files of this dataset are empty"):
        csv_of(tmp_path).schema()
    with pytest.raises(ConfigError, match="read_csv has no argument 'sep'; for CSV there are read_options"):
        read_csv(tmp_path, sep=",")
    with pytest.raises(ConfigError, match="parse_options is a dict"):
        read_csv(tmp_path, parse_options={})


def test_csv_construction_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    source = csv_of(tmp_path)
    (tmp_path / "a.csv").unlink()
    assert len(source.blocks()) == 1
    with pytest.raises(DataError, match=r"a.csv was deleted"):
        list(source.read(0, ReadRequest()))


# -- json ---------------------------------------------------------------------------------


def test_json_lines_and_arrays_give_the_same(tmp_path: Path) -> None:
    rows = [{"n": n, "when": "2024-01-02 03:04:05", "tags": ["a", "é"], "in": {"x": 0.5}} for n in range(30)]
    rows[3]["tags"] = None
    (tmp_path / "lines.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    (tmp_path / "array.json").write_text("\ufeff  " + json.dumps(rows, indent=2, ensure_ascii=False))
    by_line, by_array = json_of(tmp_path / "lines.jsonl"), json_of(tmp_path / "array.json", 5)
    assert pa.types.is_timestamp(by_line.schema().field("when").type)
    assert table_of(by_line).equals(table_of(by_array))
    assert table_of(by_line).num_rows == 30
    check_pieces(by_line)
    check_pieces(by_array)


@pytest.mark.usefixtures("small_blocks")
def test_a_json_array_over_several_blocks_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"n": n} for n in range(20)], indent=1))
    source = json_of(tmp_path, 6)
    assert len(source.blocks()) >= 5
    assert table_of(source)["n"].to_pylist() == list(range(20))


def test_json_fields_hold_for_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1, "y": "a"}\n')
    (tmp_path / "b.json").write_text('{"x": 2}\n')
    assert rows_of(json_of(tmp_path)) == [{"x": 1, "y": "a"}, {"x": 2, "y": None}]
    (tmp_path / "c.json").write_text('{"x": 2, "new": 3}\n')
    with pytest.raises(DataError, match=r"c.json cannot be read as JSON lines: .*new.*explicit_schema"):
        table_of(json_of(tmp_path))
    schema = pa.schema({"x": pa.float64(), "new": pa.int8()})
    for behaviour, names in (("ignore", ["x", "new"]), ("infer", ["x", "new", "y"])):
        options = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior=behaviour)
        source = pickle.loads(pickle.dumps(json_of(tmp_path, parse_options=options)))
        assert table_of(source).column_names == names
        assert table_of(source)["new"].to_pylist() == [None, None, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"x": 1}\n{"x": \n', "a.json cannot be read as JSON lines"),
        ('{"x": 1}\n{"x": "text"}\n', "a.json cannot be read as JSON lines"),
        ('[{"x": 1},', "a.json begins like an array but is no valid JSON"),
        ("[1, 2]", "a.json: item 0 of the array is no object but int"),
    ],
)
def test_json_that_cannot_be_read(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=message):
        table_of(json_of(tmp_path))


def test_json_arguments(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}\n")
    with pytest.raises(ConfigError, match="read_json has no argument 'lines'"):
        read_json(tmp_path, lines=True)


# -- text ---------------------------------------------------------------------------------


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
    with pytest.raises(DataError, match=r'a.txt is not text in utf-8.*encoding="..."'):
        table_of(text_of(tmp_path))
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"a.txt is not text in utf-16"):
        table_of(text_of(tmp_path, encoding="utf-16"))
    with pytest.raises(ConfigError, match="encoding='klingon'"):
        read_text(tmp_path, encoding="klingon")


def test_empty_text_files_have_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    assert rows_of(text_of(tmp_path)) == []


def test_datasets_of_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    (tmp_path / "a.json").write_text('{"x": 3}\n')
    assert read_csv(tmp_path).take_all() == [{"x": 1}, {"x": 2}]
    assert read_json(tmp_path).take_all() == [{"x": 3}]
    assert read_text(tmp_path / "a.csv").count() == 3
