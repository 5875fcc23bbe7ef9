"""JSON: lines and arrays, fields that hold for all files, and errors that name the file."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pajson
import pytest

from paceline.air.errors import ConfigError, DataError
from paceline.data.read import read_json
from tests.data.reading import check_pieces, json_of, rows_of, table_of


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
    with pytest.raises(DataError, match=r"c\.json.*new.*explicit_schema"):
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
        ('{"x": 1}\n{"x": \n', r"a\.json.*JSON lines"),
        ('{"x": 1}\n{"x": "text"}\n', r"a\.json.*JSON lines"),
        ('[{"x": 1},', r"a\.json.*array"),
        ("[1, 2]", r"a\.json.*item 0.*int"),
    ],
)
def test_json_that_cannot_be_read(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=message):
        table_of(json_of(tmp_path))


def test_json_arguments(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"read_json.*'lines'"):
        read_json(tmp_path, lines=True)
