"""Datasets of a search on three hosts: every trial reads every row, and rows travel to each host once."""

from __future__ import annotations

import shutil
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
import paceline.data
from paceline import tune
from paceline.air import DatasetConfig, RunConfig, ScalingConfig, session
from paceline.air.attachment import Attachment
from paceline.data import Dataset
from paceline.engine.remote import shipments
from paceline.train import DataParallelTrainer
from tests.cluster.ray_hosts import RESULTS, RayHosts
from tests.data.ingest_runs import write_parquet

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
ROWS = 10_007
TRIALS = 6


def read_all(config: dict[str, Any]) -> None:
    """Tells which rows this rank was given, and where they and their values come from."""
    ids: list[int] = []
    total = 0.0
    made_on: set[str] = set()
    for batch in session.get_dataset_shard("train").iter_batches(batch_size=500, batch_format="numpy"):
        ids += batch["id"].tolist()
        total += float(batch["value"].sum()) if "value" in batch else 0.0
        made_on |= set(batch["host"].tolist()) if "host" in batch else set()
    session.report({"ids": ids, "total": total, "host": socket.gethostname(), "made_on": sorted(made_on)})


def doubled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"id": batch["id"], "value": batch["id"] * 2.0}


def with_host(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"id": batch["id"], "host": np.array([socket.gethostname()] * len(batch["id"]))}


def search_over(dataset: Dataset, trials: int = TRIALS) -> list[dict[str, Any]]:
    """What the ranks of all trials have told, after a look whether each trial had each row once."""
    trainer = DataParallelTrainer(
        read_all,
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        datasets={"train": dataset},
        dataset_config={"train": DatasetConfig(split=True, uneven="all")},
    )
    grid = tune.Tuner(
        trainer,
        param_space={"train_loop_config": {"number": tune.grid_search(list(range(trials)))}},
        run_config=RunConfig(verbose=0),
    ).fit()
    assert not grid.errors, grid.errors
    told: list[dict[str, Any]] = []
    for result in grid:
        ranks = list(result.rank_metrics.values())
        assert sorted(number for rank in ranks for number in rank["ids"]) == list(range(ROWS))
        told += ranks
    assert len(told) == 2 * trials
    return told


class Sent:
    """Notes what travels to agents."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sizes: dict[int, list[int]] = {}
        """By line."""
        add = shipments.Shipments.add

        def noted(to: shipments.Shipments, attachment: Attachment) -> int:
            self.sizes.setdefault(id(to), []).append(attachment.size)
            return add(to, attachment)

        patch.setattr(shipments.Shipments, "add", noted)

    def take(self) -> list[list[int]]:
        found = list(self.sizes.values())
        self.sizes.clear()
        return found


def search_with_each_kind(parquet: str) -> dict[str, Any]:
    import pandas as pd

    frame = pd.DataFrame({"id": np.arange(ROWS), "value": np.arange(ROWS) * 2.0})
    computed = paceline.data.from_pandas(frame[["id"]]).map_batches(doubled, batch_format="numpy")
    kinds: dict[str, Callable[[], Dataset]] = {
        "memory": lambda: paceline.data.from_pandas(frame),
        "computed": lambda: computed,
        "stored": lambda: computed.random_shuffle(seed=1),
        "files": lambda: paceline.data.read_parquet(parquet).map_batches(doubled, batch_format="numpy"),
    }
    seen: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        sent = Sent(patch)
        for name, make in kinds.items():
            told = search_over(make())
            assert sum(rank["total"] for rank in told) == TRIALS * ROWS * (ROWS - 1)
            seen[name] = {"hosts": sorted({rank["host"] for rank in told}), "sent": sent.take()}
    return seen


def test_rows_of_a_search_travel_once_to_each_host(ray_hosts: RayHosts, tmp_path: Path) -> None:
    own = f"{RESULTS}/{uuid.uuid4().hex}"
    write_parquet(tmp_path / "rows", ROWS)
    for name in ray_hosts.hosts.names:
        shutil.copytree(tmp_path / "rows", ray_hosts.path(name, own))  # with the times of the files
    seen = ray_hosts.run_driver("h1", search_with_each_kind, parquet=own)
    for name in ("memory", "computed", "stored"):
        assert seen[name]["hosts"] == ["h1", "h2", "h3"]
        assert [len(sizes) for sizes in seen[name]["sent"]] == [1, 1, 1], seen[name]
    assert seen["files"] == {"hosts": ["h1", "h2", "h3"], "sent": []}


def search_with_processes() -> dict[str, Any]:
    rows = paceline.data.range(ROWS)
    beside_workers = search_over(rows.map_batches(with_host, batch_format="numpy", concurrency=1), trials=3)
    before = search_over(rows.map_batches(with_host, batch_format="numpy", concurrency=1).materialize(), trials=3)
    return {
        "beside workers": [[rank["host"], rank["made_on"]] for rank in beside_workers],
        "before": sorted({host for rank in before for host in rank["made_on"]}),
    }


def test_processes_of_a_dataset_are_beside_whoever_reads(ray_hosts: RayHosts) -> None:
    seen = ray_hosts.run_driver("h1", search_with_processes)
    assert sorted({host for host, _ in seen["beside workers"]}) == ["h1", "h2", "h3"]
    assert all(made_on == [host] for host, made_on in seen["beside workers"])
    assert seen["before"] == ["h1"], "materialize() computes where the driver is"
