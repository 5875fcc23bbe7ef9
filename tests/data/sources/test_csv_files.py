"""CSV files: types from the first rows, the options of Arrow, and errors that name the file."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

from paceline.air.errors import ConfigError, DataError
from paceline.data.block import ReadRequest
from paceline.data.read import read_csv
from tests.data.reading import csv_of, rows_of, table_of


def test_csv_types_come_from_the_first_rows_and_hold_for_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n")
    (tmp_path / "b.csv").write_text("x,y\n1,2024-01-02\n")
    (tmp_path / "c.csv").write_text("y,x\n2024-01-03,2\n")
    source = csv_of(tmp_path)
    assert source.schema() == pa.schema({"x": pa.int64(), "y": pa.date32()})
    assert table_of(source)["x"].to_pylist() == [1, 2]
    (tmp_path / "d.csv").write_text("x,y\n2.5,2024-01-04\n")
    with pytest.raises(DataError, match=r"d\.csv.*'x'.*int64.*2\.5.*column_types"):
        table_of(csv_of(tmp_path))
    options = pacsv.ConvertOptions(column_types={"x": pa.float32()})
    assert table_of(csv_of(tmp_path, convert_options=options))["x"].to_pylist() == [1.0, 2.0, 2.5]


def test_csv_types_are_inferred_from_megabytes_not_from_the_first_block(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n" + "1\n" * 1_000_000 + "0.5\n")
    assert table_of(csv_of(tmp_path / "a.csv")).num_rows == 1_000_001


@pytest.mark.parametrize(("header", "message"), [("x", r"b\.csv has no.*'y'"), ("x,y,z", r"b\.csv.*additional.*'z'")])
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
    with pytest.raises(DataError, match=r"a\.csv.*2 columns.*3"):
        table_of(csv_of(tmp_path))
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(DataError, match=r"a\.csv.*empty"):
        csv_of(tmp_path).schema()
    with pytest.raises(ConfigError, match=r"read_csv.*'sep'.*read_options"):
        read_csv(tmp_path, sep=",")
    with pytest.raises(ConfigError, match=r"parse_options.*dict"):
        read_csv(tmp_path, parse_options={})


def test_csv_construction_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    source = csv_of(tmp_path)
    (tmp_path / "a.csv").unlink()
    assert len(source.blocks()) == 1
    with pytest.raises(DataError, match=r"a\.csv.*deleted"):
        list(source.read(0, ReadRequest()))
