"""Users may change the batches and frames that they are given: nobody else holds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline.data
from paceline.data import Dataset

SOURCES: dict[str, Callable[[Path], Dataset]] = {
    "parquet": lambda folder: paceline.data.read_parquet(_written(folder)),
    "items": lambda _: paceline.data.from_items([{"id": number, "x": float(number)} for number in range(100)]),
    "numpy": lambda _: paceline.data.from_numpy(np.arange(100.0)).rename_columns({"data": "x"}),
    "stored": lambda folder: paceline.data.read_parquet(_written(folder)).materialize(),
    "shuffled": lambda folder: paceline.data.read_parquet(_written(folder)).random_shuffle(seed=1),
    "kept by a function": lambda _: paceline.data.range(100).map_batches(_always_the_same, batch_size=10),
}

KEPT = {"x": np.zeros(10)}


def _always_the_same(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return KEPT


def _written(folder: Path) -> str:
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"id": range(100), "x": np.arange(100.0)}), path, row_group_size=40)
    return str(path)


@pytest.mark.parametrize("kind", ["numpy", "torch", "pandas", "rows in numpy"])
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("source", SOURCES)
def test_batches_are_the_users_own(source: str, window: int | None, kind: str, tmp_path: Path) -> None:
    """Writing to a batch changes neither another batch nor the next epoch."""
    shard = SOURCES[source](tmp_path).iterator()
    options: dict[str, Any] = {"batch_size": 10, "local_shuffle_buffer_size": window}
    expected = shard.to_pandas()["x"].sum()
    for epoch in range(2):
        if kind == "torch":
            batches: Any = shard.iter_torch_batches(**options)
        else:
            batches = shard.iter_batches(batch_format=kind if kind == "pandas" else "numpy", **options)
        total = 0.0
        kept = []
        for batch in batches:
            total += float(batch["x"].sum())
            if kind == "pandas":
                batch.loc[:, "x"] = -1.0
            else:
                batch["x"][...] = -1.0
            kept.append(batch)
        assert total == expected, f"epoch {epoch}"
        assert all(float(batch["x"].sum()) == -len(batch["x"]) for batch in kept)
    assert not KEPT["x"].any()


@pytest.mark.parametrize("batch_format", ["numpy", "pandas"])
def test_lists_in_batches_are_the_users_own(tmp_path: Path, batch_format: str) -> None:
    lists = [[1.0] * (number % 3 + 1) for number in range(20)]
    pq.write_table(pa.table({"ragged": lists, "equal": [[1.0, 2.0]] * 20}), tmp_path / "lists.parquet")
    shard = paceline.data.read_parquet(str(tmp_path)).iterator()
    for _ in range(2):
        for batch in shard.iter_batches(batch_size=5, batch_format=batch_format):
            for column in ("ragged", "equal"):
                for cell in batch[column]:
                    assert cell[0] == 1.0
                    cell[...] = -1.0


@pytest.mark.parametrize("source", ["parquet", "items"])
def test_functions_may_write_to_the_frames_they_are_given(source: str, tmp_path: Path) -> None:
    def halve_the_first(frame: Any) -> Any:
        frame.loc[frame["id"] < 10, "x"] = 0.5
        return frame

    dataset = SOURCES[source](tmp_path)
    changed = dataset.map_batches(halve_the_first, batch_format="pandas").to_pandas()
    assert changed["x"].tolist() == [0.5] * 10 + [float(number) for number in range(10, 100)]
    assert dataset.to_pandas()["x"].tolist() == [float(number) for number in range(100)]
