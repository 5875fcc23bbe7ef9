"""The results of a function have one schema, whether nulls come early, late or never."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paceline import data
from paceline.air.errors import DataError
from paceline.data.sources.computed import TableSource


def late_nulls() -> pa.Table:
    rows = range(40)
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "whole": pa.array([None if row > 30 else row for row in rows], pa.int32()),
            "text": pa.array([None if row < 30 else f"t{row}" for row in rows]),
            "when": pa.array([None if row < 30 else datetime.datetime(2024, 1, 1) for row in rows]),
        }
    )


def in_small_blocks(table: pa.Table) -> data.Dataset:
    return data.Dataset(TableSource(table, block_rows=3))


@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "pyarrow"])
def test_batches_with_and_without_nulls_have_one_schema(batch_format: str) -> None:
    table = late_nulls()
    dataset = in_small_blocks(table).map_batches(lambda batch: batch, batch_format=batch_format)
    assert dataset.to_arrow().equals(table)


@pytest.mark.parametrize("method", ["map", "flat_map"])
def test_rows_with_and_without_nulls_have_one_schema(method: str) -> None:
    table = late_nulls()
    dataset = in_small_blocks(table)
    same = dataset.map(lambda row: row) if method == "map" else dataset.flat_map(lambda row: [row])
    assert same.to_arrow().to_pylist() == table.to_pylist()


def test_groups_with_and_without_nulls_have_one_schema() -> None:
    table = late_nulls()
    same = data.from_arrow(table).groupby("id").map_groups(lambda group: group).to_arrow()
    assert same.equals(table)


def test_fractions_after_whole_numbers_are_not_cut() -> None:
    def halved(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["id"] if batch["id"][0] == 0 else np.where(batch["id"] % 2, np.nan, batch["id"] + 0.5)}

    with pytest.raises(DataError, match=r"halved.*'x'.*double.*int64"):
        in_small_blocks(pa.table({"id": range(40)})).map_batches(halved).take_all()
