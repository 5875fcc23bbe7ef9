"""Datasets on three hosts: workers read files that they see themselves, and everything else travels to them."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
import paceline.data
from paceline.air import DatasetConfig, FailureConfig, Result, RunConfig, ScalingConfig, session
from paceline.air.errors import DataError
from paceline.data import Dataset
from paceline.data.preprocessors import StandardScaler
from paceline.train import DataParallelTrainer
from tests.cluster.ray_hosts import RESULTS, RayHosts
from tests.data.ingest_runs import write_parquet

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
ROWS = 10_007
WORKERS = 3


def tell_ids(config: dict[str, Any]) -> None:
    """The ids of this rank, and which values came with them."""
    split = config.get("split")
    shard = split[session.get_world_rank()] if split else session.get_dataset_shard("train")
    ids: list[int] = []
    total = 0.0
    if config.get("torch"):
        for batch in shard.iter_torch_batches(batch_size=500):
            ids += batch["id"].tolist()
    else:
        for batch in shard.iter_batches(batch_size=500, batch_format="numpy"):
            ids += batch["id"].tolist()
            total += float(batch["value"].sum()) if "value" in batch else 0.0
    session.report({"ids": ids, "total": total})


def read(dataset: Dataset, preprocessor: Any = None, **config: Any) -> Result:
    return DataParallelTrainer(
        tell_ids,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=WORKERS, resources_per_worker={"CPU": 2}),
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(start_timeout_s=120)),
        datasets={"train": dataset},
        dataset_config={"train": DatasetConfig(split=True, uneven="all")},
        preprocessor=preprocessor,
    ).fit()


def check_each_once(result: Result) -> None:
    shares = [metrics["ids"] for metrics in result.rank_metrics.values()]
    assert len(shares) == WORKERS
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert sorted(number for share in shares for number in share) == list(range(ROWS))


def doubled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"id": batch["id"], "value": batch["id"] * 2.0}


def in_numpy() -> Dataset:
    numbers = paceline.data.from_numpy(np.arange(ROWS))
    return numbers.map_batches(lambda batch: doubled({"id": batch["data"]}), batch_format="numpy")


def in_memory() -> dict[str, Callable[[], Dataset]]:
    """The same rows in every way to have them in the driver."""
    import pandas as pd
    import pyarrow as pa

    frame = pd.DataFrame({"id": np.arange(ROWS), "value": np.arange(ROWS) * 2.0})
    parquet = write_parquet(Path(RESULTS, uuid.uuid4().hex), ROWS)
    files = paceline.data.read_parquet(parquet)  # on the driver's own disk
    return {
        "pandas": lambda: paceline.data.from_pandas(frame),
        "arrow": lambda: paceline.data.from_arrow(pa.Table.from_pandas(frame)),
        "numpy": in_numpy,
        "range": lambda: paceline.data.range(ROWS).map_batches(doubled, batch_format="numpy"),
        "items": lambda: paceline.data.from_items([{"id": number, "value": number * 2.0} for number in range(ROWS)]),
        "materialized": lambda: files.map_batches(doubled, batch_format="numpy").materialize(),
        "sorted": lambda: files.map_batches(doubled, batch_format="numpy").sort("id", descending=True),
        "shuffled": lambda: paceline.data.from_pandas(frame).random_shuffle(seed=1),
    }


def read_what_is_in_the_driver() -> list[str]:
    from paceline.data import store

    done = []
    for name, make in in_memory().items():
        result = read(make())
        check_each_once(result)
        assert sum(metrics["total"] for metrics in result.rank_metrics.values()) == ROWS * (ROWS - 1)
        done.append(name)
    vars(store)["MEMORY_BYTES"] = 1 << 16  # What is larger goes to a file.
    spilled = in_numpy().random_shuffle(seed=2).materialize()
    check_each_once(read(spilled))
    check_each_once(read(spilled, torch=True))
    rows = paceline.data.range(ROWS)
    check_each_once(read(rows, split=rows.streaming_split(WORKERS)))
    scaler = StandardScaler(["value"])
    result = read(in_numpy(), preprocessor=scaler)
    check_each_once(result)
    assert abs(sum(metrics["total"] for metrics in result.rank_metrics.values())) < 1e-6
    return done


def test_rows_of_the_driver_travel_to_the_workers(ray_hosts: RayHosts) -> None:
    done = ray_hosts.run_driver("h1", read_what_is_in_the_driver, timeout=400)
    assert len(done) == 8


def read_unseen_files() -> str:
    parquet = write_parquet(Path(RESULTS, uuid.uuid4().hex), ROWS)
    with pytest.raises(DataError) as raised:
        read(paceline.data.read_parquet(parquet))
    return str(raised.value)


def test_files_that_a_host_does_not_see_are_refused_at_once(ray_hosts: RayHosts) -> None:
    error = ray_hosts.run_driver("h1", read_unseen_files)
    assert "h2 (10.231.0.2) does not see /" in error or "h3 (10.231.0.3) does not see /" in error
    assert "part-0.parquet, nor 4 more of its files" in error
    assert "materialize()" in error


def read_shared_files(parquet: str) -> None:
    dataset = paceline.data.read_parquet(parquet)
    check_each_once(read(dataset))
    check_each_once(read(dataset.map_batches(doubled, batch_format="numpy"), torch=True))


def test_workers_read_shared_files_and_true_copies(own_ray_hosts: Callable[..., RayHosts], tmp_path: Path) -> None:
    ray_hosts = own_ray_hosts(3, tmp_path)
    ray_hosts.run_driver("h1", read_shared_files, parquet=write_parquet(tmp_path / "rows", ROWS))
    own = f"{RESULTS}/rows"
    for name in ray_hosts.hosts.names:
        shutil.copytree(tmp_path / "rows", ray_hosts.path(name, own))  # with the times of the files
    ray_hosts.run_driver("h1", read_shared_files, parquet=own)
    changed = sorted(ray_hosts.path("h3", own).iterdir())[2]
    os.utime(changed, (1, 1))
    with pytest.raises(AssertionError, match=r"h3 \(10.231.0.3\) has another version of .*part-2.parquet"):
        ray_hosts.run_driver("h1", read_shared_files, parquet=own)
