"""global_batch_size: all workers together."""

from __future__ import annotations

from typing import Any

import pytest

import paceline.data
from paceline.air.errors import ConfigError
from paceline.data.global_batch import rows_per_worker
from paceline.data.ingest.prepare import prepared
from paceline.data.iterator import DataIterator


def shard(workers: int) -> DataIterator:
    return DataIterator(prepared("train", paceline.data.range(24), split=True), 0, workers)


@pytest.mark.parametrize("method", ["iter_batches", "iter_torch_batches"])
def test_each_worker_reads_its_part(method: str) -> None:
    sizes = [len(batch["id"]) for batch in getattr(shard(3), method)(global_batch_size=12)]
    assert sizes == [4, 4]


def test_a_whole_dataset_has_one_reader() -> None:
    assert [len(batch["id"]) for batch in paceline.data.range(24).iter_batches(global_batch_size=12)] == [12, 12]


@pytest.mark.parametrize("method", ["iter_batches", "iter_torch_batches", "iter_tf_batches"])
def test_sizes_that_cannot_be_shared(method: str) -> None:
    with pytest.raises(ConfigError, match=r"99 or 102; 100 rows can be shared by 1, 2, 4, 5, 10, 20, 25 workers"):
        getattr(shard(3), method)(global_batch_size=100)
    with pytest.raises(ConfigError, match="it can be 8; 5 rows"):
        rows_per_worker(256, 5, 8)


@pytest.mark.parametrize(("sizes", "advice"), [((64, 128), "one of them"), ((256, 0), "global_batch_size")])
def test_refusals(sizes: tuple[int, int], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        rows_per_worker(*sizes, workers=2)


def test_without_it_nothing_changes() -> None:
    given: Any = None
    assert rows_per_worker(64, given, 3) == 64
