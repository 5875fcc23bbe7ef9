"""Rows from and to a database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline import data
from paceline.air import RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, DataError
from paceline.train import DataParallelTrainer


@pytest.fixture
def connect(tmp_path: Path) -> Callable[[], sqlite3.Connection]:
    def open_it() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "rows.db")

    with open_it() as connection:
        connection.execute("CREATE TABLE trips (id INTEGER, km REAL, kind TEXT, photo BLOB)")
        rows = [(number, number / 2, None if number == 3 else "bus", b"x") for number in range(10)]
        connection.executemany("INSERT INTO trips VALUES (?, ?, ?, ?)", rows)
    connection.close()
    return open_it


def test_a_query_is_a_dataset(connect: Callable[[], sqlite3.Connection]) -> None:
    dataset = data.read_sql("SELECT * FROM trips WHERE id > 1 ORDER BY id", connect)
    assert [str(field.type) for field in dataset.schema()] == ["int64", "double", "string", "binary"]
    assert dataset.count() == 8
    assert dataset.take(2)[1] == {"id": 3, "km": 1.5, "kind": None, "photo": b"x"}
    assert data.read_sql("SELECT id FROM trips", connect, parallelism=3).num_blocks() == 3
    assert data.read_sql("SELECT id, kind FROM trips WHERE id < 0", connect).columns() == ["id", "kind"]


def test_the_query_runs_once_and_later_changes_are_not_seen(connect: Callable[[], sqlite3.Connection]) -> None:
    dataset = data.read_sql("SELECT id FROM trips", connect)
    assert dataset.count() == 10
    with connect() as connection:
        connection.execute("DELETE FROM trips")
    connection.close()
    assert dataset.sum("id") == 45


def test_a_run_reads_every_row_once(connect: Callable[[], sqlite3.Connection], tmp_path: Path) -> None:
    def train_loop() -> None:
        for batch in session.get_dataset_shard("train").iter_batches(batch_size=5):
            session.report({"ids": batch["id"].tolist()})

    result = DataParallelTrainer(
        train_loop,
        datasets={"train": data.read_sql("SELECT id FROM trips ORDER BY id", connect)},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path)),
    ).fit()
    assert result.metrics_dataframe is not None
    assert [number for ids in result.metrics_dataframe["ids"] for number in ids] == list(range(10))


def test_rows_are_written_all_or_none(connect: Callable[[], sqlite3.Connection]) -> None:
    with connect() as connection:
        connection.execute("CREATE TABLE copies (id INTEGER PRIMARY KEY, kind TEXT)")
    connection.close()
    rows = [{"id": number, "kind": "taxi"} for number in range(5)]
    data.from_items(rows).write_sql("INSERT INTO copies VALUES (?, ?)", connect)
    assert data.read_sql("SELECT * FROM copies ORDER BY id", connect).take_all() == rows
    twice = data.from_items([{"id": 77, "kind": "a"}, {"id": 1, "kind": "b"}])
    with pytest.raises(DataError, match=r"UNIQUE.*INSERT INTO copies.*\['id', 'kind'\]"):
        twice.write_sql("INSERT INTO copies VALUES (?, ?)", connect)
    assert data.read_sql("SELECT * FROM copies", connect).count() == 5


def test_mistakes_are_told_with_the_query(connect: Callable[[], sqlite3.Connection]) -> None:
    with pytest.raises(DataError, match=r"no such table.*SELECT \* FROM tripz"):
        data.read_sql("SELECT * FROM tripz", connect).count()
    with pytest.raises(DataError, match="SELECT"):
        data.read_sql("DELETE FROM trips", connect).count()
    with pytest.raises(ConfigError, match=r"connection_factory.*lambda"):
        data.read_sql("SELECT 1", connect())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sql"):
        data.read_sql("", connect)
