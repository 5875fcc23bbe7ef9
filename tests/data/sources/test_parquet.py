"""Parquet: row groups as blocks, mixed and damaged files, partitioned directories."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline import data
from paceline.air.errors import ConfigError, DataError
from paceline.data.block import ReadRequest
from paceline.data.read import read_parquet
from paceline.data.sources.listing import list_files
from paceline.data.sources.parquet import ParquetSource
from tests.data.reading import check_pieces, rows_of, table_of, write_parts


def source_of(path: Path, **options: object) -> ParquetSource:
    return ParquetSource(list_files(path, None, (".parquet",)), **options)  # type: ignore[arg-type]


def damage(path: Path, row_group: int) -> None:
    """Overwrite the first page of the ids of a row group."""
    column = pq.ParquetFile(path).metadata.row_group(row_group).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset : column.data_page_offset + 16] = b"\xff" * 16
    path.write_bytes(bytes(content))


def test_a_driver_that_only_hands_files_on_loads_no_pandas(tmp_path: Path) -> None:
    """Blocks, schema and row counts come from footers: pandas would take longer than all of it."""
    write_parts(tmp_path, files=3)
    program = (
        "import sys; from paceline import data; dataset = data.read_parquet(sys.argv[1]); "
        "print(dataset.count(), len(dataset.schema().names) > 0, 'pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["60", "True", "False"]


def test_row_groups_are_blocks_in_the_order_of_rows(tmp_path: Path) -> None:
    write_parts(tmp_path, files=11)
    source = source_of(tmp_path)
    assert [block.rows for block in source.blocks()] == [5] * 44
    assert "part-10.parquet, row group 3" in source.blocks()[-1].name
    assert table_of(source)["id"].to_pylist() == list(range(220))
    check_pieces(source)


def test_columns_are_chosen_and_ordered(tmp_path: Path) -> None:
    write_parts(tmp_path, files=2)
    source = source_of(tmp_path, columns=("name", "id"))
    assert source.schema().names == ["name", "id"]
    assert rows_of(source)[21] == {"name": "n21", "id": 21}
    with pytest.raises(DataError, match=r"part-0\.parquet.*'nope'.*\['id', 'half'"):
        source_of(tmp_path, columns=("nope",)).schema()
    with pytest.raises(DataError, match="'half'"):
        list(source.read(0, ReadRequest(columns=("half",))))


def test_notes_of_pandas_are_dropped_and_types_are_kept(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("kind", pa.dictionary(pa.int32(), pa.string())),
            pa.field("text", pa.large_string()),
            pa.field("when", pa.timestamp("us", tz="UTC")),
            pa.field("inner", pa.struct([("a", pa.int8()), ("b", pa.list_(pa.float32()))])),
            pa.field("image", pa.fixed_shape_tensor(pa.uint8(), (2, 2))),
        ],
        metadata={"pandas": "{}"},
    )
    cells = pa.ExtensionArray.from_storage(
        schema.field("image").type, pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.uint8(), 4))
    )
    values = [["x", "y"], ["long", None], [0, 1], [{"a": 1, "b": [1.0]}, None]]
    arrays = [pa.array(value, field.type) for value, field in zip(values, schema, strict=False)]
    table = pa.Table.from_arrays([*arrays, cells], schema=schema)
    pq.write_table(table, tmp_path / "a.parquet")
    source = source_of(tmp_path)
    assert source.schema().metadata is None
    assert source.schema().types == schema.types
    assert table_of(source).equals(table)


def test_wider_types_of_later_files_are_an_error_and_narrower_ones_are_cast(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1], pa.int64()), "y": ["a"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"y": ["b"], "x": pa.array([2], pa.int32())}), tmp_path / "b.parquet")
    assert rows_of(source_of(tmp_path)) == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]
    pq.write_table(pa.table({"x": ["no number"], "y": ["c"]}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c.parquet.*'x'.*string.*int64"):
        source_of(tmp_path).blocks()


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"x": [1]}, r"b\.parquet has no.*'y'"), ({"x": [1], "y": [2], "z": [3]}, r"b\.parquet has a.*'z'")],
)
def test_files_with_other_columns_are_refused(tmp_path: Path, columns: dict[str, list[int]], message: str) -> None:
    pq.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=message):
        source_of(tmp_path).blocks()
    assert table_of(source_of(tmp_path, columns=("x",)))["x"].to_pylist() == [1, 1]


def test_a_damaged_row_group_is_named(tmp_path: Path) -> None:
    damage(write_parts(tmp_path, files=10)[7], row_group=2)
    source = source_of(tmp_path)
    good = [block for block in range(40) if block != 30]
    assert sum(chunk.num_rows for block in good for chunk in source.read(block, ReadRequest())) == 195
    with pytest.raises(DataError, match=r"part-7\.parquet, row group 2\b"):
        list(source.read(30, ReadRequest()))


def test_damaged_row_groups_are_skipped_as_a_whole_if_asked(tmp_path: Path) -> None:
    damage(write_parts(tmp_path, files=10)[7], row_group=2)
    source = source_of(tmp_path, on_error="skip")
    assert [block.rows for block in source.blocks()] == [None] * 40
    expected = [number for number in range(200) if not 150 <= number < 155]
    # The damage is in the ids, but the rows are gone from every selection of columns.
    assert table_of(source, columns=("half",))["half"].to_pylist() == [number / 2 for number in expected]
    assert table_of(source)["id"].to_pylist() == expected
    assert [block.rows for block in source.blocks()] == [5] * 30 + [0] + [5] * 9
    (reason,) = source.skipped()
    assert "part-7.parquet, row group 2" in reason
    assert "5 rows were skipped" in reason
    assert pickle.loads(pickle.dumps(source)).skipped() == [reason]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"this is no Parquet file at all", b"PAR1" + b"\0" * 100 + b"PAR1"])
@pytest.mark.parametrize("part", [0, 3])
def test_a_file_without_a_footer_is_named_or_skipped(tmp_path: Path, content: bytes, part: int) -> None:
    write_parts(tmp_path, files=4)[part].write_bytes(content)
    with pytest.raises(DataError, match=rf"part-{part}\.parquet.*Parquet"):
        source_of(tmp_path).blocks()
    source = source_of(tmp_path, on_error="skip")
    assert table_of(source).num_rows == 60
    assert len(source.skipped()) == 1
    assert f"part-{part}.parquet" in source.skipped()[0]


def test_all_files_unreadable_is_an_error_even_when_skipping(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x")
    with pytest.raises(DataError, match=r"a.parquet"):
        source_of(tmp_path, on_error="skip").blocks()


def test_page_checksums_are_verified(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": list(range(1000))}), path, compression="none", use_dictionary=False, write_page_checksum=True
    )
    content = bytearray(path.read_bytes())
    content[4000] ^= 1  # one bit of one value
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"a.parquet, row group 0.*(?i:crc)"):
        table_of(source_of(tmp_path))


def test_construction_reads_nothing_of_the_files(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, files=2)
    source = source_of(tmp_path)
    paths[1].unlink()
    assert source.schema().names == ["id", "half", "name"]
    with pytest.raises(DataError, match=r"part-1\.parquet.*deleted"):
        source.blocks()


def test_a_file_that_changes_between_two_row_groups_is_noticed(tmp_path: Path) -> None:
    (path,) = write_parts(tmp_path, files=1)
    source = source_of(tmp_path)
    assert len(list(source.read(0, ReadRequest()))) == 1
    pq.write_table(pa.table({"id": [1], "half": [0.5], "name": ["x"]}), path)
    with pytest.raises(DataError, match=r"part-0\.parquet changed.* bytes"):
        list(source.read(1, ReadRequest()))


def test_readers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    write_parts(tmp_path, files=1, rows=40, row_group_size=20)
    source = source_of(tmp_path)
    readers = [source.read(block, ReadRequest(chunk_rows=3)) for block in (0, 1, 0)]
    seen: list[list[int]] = [[], [], []]
    for _ in range(7):
        for reader, ids in zip(readers, seen, strict=True):
            ids += next(reader)["id"].to_pylist()
    assert seen == [list(range(20)), list(range(20, 40)), list(range(20))]
    abandoned = source.read(0, ReadRequest(chunk_rows=3))
    next(abandoned)
    abandoned.close()  # type: ignore[attr-defined]
    assert table_of(source).num_rows == 40


def test_a_pickled_source_reads_in_another_process(tmp_path: Path) -> None:
    write_parts(tmp_path / "data", files=3)
    source = source_of(tmp_path / "data")
    source.blocks()
    pickled = tmp_path / "source.pickle"
    pickled.write_bytes(pickle.dumps(source))
    code = (
        "import json, pickle, sys; from paceline.data.block import ReadRequest;"
        "source = pickle.load(open(sys.argv[1], 'rb'));"
        "print(json.dumps([c['id'].to_pylist() for b in (0, 11) for c in source.read(b, ReadRequest())]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(pickled)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[0, 1, 2, 3, 4], [55, 56, 57, 58, 59]]


def test_directories_named_like_values_become_columns(tmp_path: Path) -> None:
    for year, city in ((2023, "Oslo"), (2024, "S%C3%A3o"), (2024, "__HIVE_DEFAULT_PARTITION__")):
        directory = tmp_path / f"year={year}" / f"city={city}"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"x": [1, 2]}), directory / "a.parquet")
    source = source_of(tmp_path)
    assert source.schema() == pa.schema({"x": pa.int64(), "year": pa.int64(), "city": pa.string()})
    found = {(row["year"], row["city"]) for row in rows_of(source)}
    assert found == {(2023, "Oslo"), (2024, "São"), (2024, None)}
    check_pieces(source)
    by_pattern = ParquetSource(list_files(f"{tmp_path}/year=2024/*/*.parquet"))
    assert by_pattern.schema().names == ["x", "city"]
    assert source_of(tmp_path / "year=2023" / "city=Oslo").schema().names == ["x"]
    pq.write_table(pa.table({"x": [1]}), tmp_path / "loose.parquet")
    with pytest.raises(DataError, match=r"loose.parquet.*nothing"):
        source_of(tmp_path)


def test_a_column_in_the_file_wins_over_the_directory(tmp_path: Path) -> None:
    (tmp_path / "year=2024").mkdir()
    pq.write_table(pa.table({"year": ["24"], "x": [1]}), tmp_path / "year=2024" / "a.parquet")
    assert rows_of(source_of(tmp_path)) == [{"year": "24", "x": 1}]


def test_files_without_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    source = source_of(tmp_path)
    assert sum(block.rows or 0 for block in source.blocks()) == 0
    assert table_of(source).schema == pa.schema({"id": pa.int64()})


def test_large_row_groups_are_read_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.data.sources.parquet.LARGE_ROW_GROUP", 1 << 20)
    rows = 1 << 20
    table = pa.table({"x": np.arange(rows), "y": np.arange(rows)})
    pq.write_table(table, tmp_path / "a.parquet", compression="none", use_dictionary=False, row_group_size=rows)
    source = source_of(tmp_path)
    assert [block.rows for block in source.blocks()] == [rows]
    before, most, seen = pa.total_allocated_bytes(), 0, 0
    for chunk in source.read(0, ReadRequest(chunk_rows=1024)):
        assert chunk["x"][0].as_py() == seen
        seen += chunk.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert seen == rows
    assert most < table.nbytes / 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"columns": "id"}, "columns.*list"),
        ({"columns": ["id", "id"]}, "columns.*twice"),
        ({"parallelism": 0}, "parallelism=0"),
        ({"filesystem": "s3"}, "filesystem.*str"),
    ],
)
def test_arguments_that_cannot_work(tmp_path: Path, options: dict[str, object], message: str) -> None:
    write_parts(tmp_path, files=1)
    with pytest.raises(ConfigError, match=message):
        read_parquet(str(tmp_path), **options)  # type: ignore[arg-type]


def test_read_parquet_gives_a_dataset(tmp_path: Path) -> None:
    write_parts(tmp_path, files=2)
    dataset = read_parquet(tmp_path, columns=["id"])
    assert dataset.count() == 40
    assert dataset.take(2) == [{"id": 0}, {"id": 1}]


def test_times_with_and_without_zone_do_not_mix(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("us"))}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("us", tz="UTC"))}), tmp_path / "1.parquet")
    with pytest.raises(DataError, match=r"1\.parquet.*'t'.*timestamp\[us, tz=UTC\]"):
        data.read_parquet(tmp_path).take_all()
