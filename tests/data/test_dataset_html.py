"""A Dataset in a notebook: what is known of it, without reading anything."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paceline import data


def text_of(dataset: Any) -> str:
    return " ".join(" ".join(ElementTree.fromstring(dataset._repr_html_()).itertext()).split())


def test_steps_and_columns() -> None:
    dataset = data.from_items([{"x": 1, "<b>": "a"}]).select_columns(["<b>", "x"])
    text = text_of(dataset)
    assert text.startswith("Dataset · 2 columns table(1 row) → select_columns")
    assert text.endswith("column type <b> string x int64")


def test_rows_once_they_are_counted() -> None:
    dataset = data.range(1000).filter(lambda row: row["id"] % 2 == 0)
    assert " rows" not in text_of(dataset).split(" → ")[0].replace("rows are read", "")
    dataset.count()
    assert "500 rows" in text_of(dataset)


def test_nothing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    dataset = data.read_parquet(str(path)).map_batches(lambda batch: 1 / 0)
    path.write_bytes(b"not a Parquet file any more")
    assert "columns not known until rows are read" in text_of(dataset)


def test_what_was_found_before_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    dataset = data.read_parquet(str(path))
    dataset.schema()
    assert text_of(dataset).endswith("column type x int64")


def test_many_columns_and_steps_are_counted() -> None:
    dataset = data.from_items([{f"c{number}": 1 for number in range(40)}])
    for _ in range(30):
        dataset = dataset.select_columns([f"c{number}" for number in range(40)])
    text = text_of(dataset)
    assert "and 10 more columns" in text
    assert "more steps" in text
