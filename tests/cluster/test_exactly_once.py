"""Hosts are killed, and the run is restored with 3, 2, 1 and again 3 workers: no row is lost, and none is given twice.

The driver is on a host of its own. Each host that dies has a rank that waits for it, so that nothing is left to chance.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline.data
from paceline import train
from paceline.air import DatasetConfig, FailureConfig, Result, RunConfig, ScalingConfig
from paceline.testing.processes import wait_for
from paceline.train import Checkpoint, DataParallelTrainer
from paceline.tune import Callback
from tests.cluster.conftest import make_ray_hosts
from tests.cluster.driver import tell
from tests.cluster.ray_hosts import RESULTS, RayHosts
from tests.data.ingest_runs import ROWS, assert_each_row_once, surviving, tell_rows, write_parquet

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
DRIVERS_HOST = "h4"
HEARTBEAT_S = 8.0
STALLS = {"h3": 4, "h2": 8}
"""The step that a rank on these hosts does not get beyond."""
DIES_AT = 12
"""The step at which a worker that is alone is killed."""
SIZES = [3, 2, 1, 3]
PHASE_S = 240.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayHosts]:
    ray_hosts = make_ray_hosts(3, driver_hosts=1)
    yield ray_hosts
    ray_hosts.down()


class TellRows(Callback):
    """Lets the test know how far the run is."""

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        tell("row", step=result["step"])


def run_config() -> RunConfig:
    return RunConfig(
        storage_path=RESULTS,
        verbose=0,
        callbacks=[TellRows()],
        failure_config=FailureConfig(never_retry=["node_lost"], heartbeat_timeout_s=HEARTBEAT_S, start_timeout_s=120),
    )


def scaling(workers: int) -> ScalingConfig:
    return ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 2})


def wait_for_nodes(count: int) -> None:
    """Ray takes its time to notice that a host is gone."""
    import ray

    ray.init(address="auto", log_to_driver=False)
    wait_for(lambda: sum(node["Alive"] for node in ray.nodes()) == count, f"{count} nodes", 60)


def outcome(result: Result) -> dict[str, Any]:
    return {"path": result.path, "status": result.status, "error": str(result.error)}


def in_phases(cluster: RayHosts, phase: Callable[..., Any]) -> dict[str, Any]:
    """One driver after the other continues the run: with all hosts, without h3, without h2, and with all again."""
    path: str | None = None
    ended: dict[str, Any] = {}
    for number, workers in enumerate(SIZES):
        hosts = [4, 3, 2, 4][number]
        driver = cluster.start_driver(DRIVERS_HOST, phase, workers=workers, path=path, nodes=hosts)
        victim = {3: "h3", 2: "h2"}.get(workers) if number < 2 else None
        if victim is not None:
            while driver.wait_for("row", PHASE_S)["step"] < STALLS[victim] - 1:
                pass
            cluster.kill(victim)
        ended = driver.result(PHASE_S)
        path = ended["path"]
        if number < len(SIZES) - 1:
            assert ended["status"] == "failed"
            assert (victim or "SIGKILL") in ended["error"]
        if number == 2:
            cluster.revive("h2")
            cluster.revive("h3")
    assert ended["status"] == "finished", ended["error"]
    return ended


# Rows of a dataset, in a loop without collectives


def read_rows(workers: int, path: str | None, nodes: int) -> dict[str, Any]:
    wait_for_nodes(nodes)
    files = Path(RESULTS, "rows")
    if path is None:
        write_parquet(files)
    dataset = paceline.data.read_parquet(str(files)).materialize()  # only the driver's host has the files
    config = {
        "epochs": 2,
        "batches": {"batch_size": 200},
        "kills": [],
        "stalls": STALLS,
        "dies_alone_at": DIES_AT,
        "every": 3,
        "stop_at": None,
        "in_step": True,
        "rank_0_only": False,
        "marks": f"{RESULTS}/marks",
    }
    if path is None:
        result = DataParallelTrainer(
            tell_rows,
            train_loop_config=config,
            scaling_config=scaling(workers),
            run_config=run_config(),
            datasets={"train": dataset},
            dataset_config={"train": DatasetConfig(split=True, uneven="all", randomize_block_order=True, seed=5)},
        ).fit(raise_on_error=False)
    else:
        result = DataParallelTrainer.restore(
            path,
            train_loop_per_worker=tell_rows,
            scaling_config=scaling(workers),
            run_config=run_config(),
            datasets={"train": dataset},
        ).fit(raise_on_error=False)
    facts = outcome(result)
    if result.status == "finished":
        rows = surviving(result)
        assert_each_row_once(rows, range(ROWS))
        facts["ranks"] = [len({row["rank"] for row in rows if row["step"] == step}) for step in (1, 5, 8, 10)]
    return facts


def test_each_row_once_though_hosts_die_and_world_sizes_change(cluster: RayHosts) -> None:
    ended = in_phases(cluster, read_rows)
    assert ended["ranks"] == SIZES


# The same steps with DDP

BATCH = 12
STEPS = 40


def an_array() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(BATCH * STEPS, 5))
    return features, features @ rng.normal(size=(5, 1)) + rng.normal(size=(BATCH * STEPS, 1))


def make_model() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


def train_on_slices(config: dict[str, Any]) -> None:
    """Global step k takes the rows 12k to 12k+11, whoever trains: each rank its share of them."""
    import torch

    from paceline.train.torch import prepare_model

    features, targets = (torch.from_numpy(array) for array in an_array())
    model, first = make_model(), 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        state = checkpoint.to_dict()
        first = state["step"]
        model.load_state_dict({name: torch.from_numpy(value) for name, value in state["model"].items()})
    context = train.get_context()
    model = prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    share = BATCH // context.get_world_size()
    for step in range(first, STEPS):
        begin = BATCH * step + share * context.get_world_rank()
        if config["stalls"].get(socket.gethostname()) == step + 1:
            time.sleep(1000)
        if context.get_world_size() == 1 and step + 1 == config["dies_at"]:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = ((model(features[begin : begin + share]) - targets[begin : begin + share]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        whole = getattr(model, "module", model)
        weights = {name: value.detach().numpy().copy() for name, value in whole.state_dict().items()}
        train.report({"step": step + 1}, checkpoint=Checkpoint.from_dict({"step": step + 1, "model": weights}))


def undisturbed() -> dict[str, np.ndarray]:
    import torch

    features, targets = (torch.from_numpy(array) for array in an_array())
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        rows = slice(BATCH * step, BATCH * (step + 1))
        optimizer.zero_grad()
        ((model(features[rows]) - targets[rows]) ** 2).mean().backward()
        optimizer.step()
    return {name: value.numpy() for name, value in model.state_dict().items()}


def train_with_ddp(workers: int, path: str | None, nodes: int) -> dict[str, Any]:
    from paceline.train.torch import TorchTrainer

    wait_for_nodes(nodes)
    settings: dict[str, Any] = {"scaling_config": scaling(workers), "run_config": run_config()}
    if path is None:
        config = {"stalls": STALLS, "dies_at": DIES_AT}
        result = TorchTrainer(train_on_slices, train_loop_config=config, **settings).fit(raise_on_error=False)
    else:
        restored = TorchTrainer.restore(path, train_loop_per_worker=train_on_slices, **settings)
        result = restored.fit(raise_on_error=False)
    facts = outcome(result)
    if result.status == "finished":
        assert result.checkpoint is not None
        assert result.metrics_dataframe is not None
        assert list(result.metrics_dataframe["step"]) == list(range(1, STEPS + 1))
        model = result.checkpoint.to_dict()["model"]
        for name, expected in undisturbed().items():
            np.testing.assert_allclose(model[name], expected, rtol=1e-9, atol=0)
        facts["compared"] = len(model)
    return facts


def test_ddp_ends_where_the_undisturbed_run_ends(cluster: RayHosts) -> None:
    ended = in_phases(cluster, train_with_ddp)
    assert ended["compared"] == 4
