"""TorchTrainer on two hosts: DDP over their addresses, no shared directory for checkpoints, no shared rows."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline import data, train
from paceline.air.result import Result
from paceline.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer, prepare_model
from tests.engine.remote.engine import AgentsEngine

pytestmark = pytest.mark.timeout(300)  # every attempt imports torch on both hosts
ROWS = 20_000
"""More than travels inside a pickle."""
EPOCHS = 4


def rows_in_memory() -> data.Dataset:
    return data.from_numpy(np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32))


def train_with_ddp(config: dict[str, Any]) -> None:
    """Epochs with a checkpoint after each. Rank 1 is killed in the first attempt, and may fail in the second."""
    model = torch.nn.Linear(2, 1)
    first = 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
        first = state["epoch"] + 1
        model.load_state_dict(state["model"])
    model = prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    context = train.get_context()
    for epoch in range(first, EPOCHS):
        rows = 0
        for batch in train.get_dataset_shard("train").iter_torch_batches(batch_size=2_000):
            features = batch["data"]
            optimizer.zero_grad()
            ((model(features) - features.sum(1, keepdim=True)) ** 2).mean().backward()
            optimizer.step()
            rows += len(features)
        if context.get_world_rank() == 1 and epoch == first + 1:
            end_attempt(config["ends"].get(first))
        metrics = {
            "epoch": epoch,
            "first": first,
            "rows": rows,
            "weights": [float(value) for value in model.module.weight.detach().flatten()],
            "host": socket.gethostname(),
            "node_rank": context.get_node_rank(),
            "local_rank": context.get_local_rank(),
            "local_world_size": context.get_local_world_size(),
        }
        report_with_checkpoint(metrics, model.module.state_dict(), context.get_world_rank())


def report_with_checkpoint(metrics: dict[str, Any], weights: dict[str, Any], rank: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"epoch": metrics["epoch"], "model": weights}, os.path.join(folder, "state.pt"))
        train.report(metrics, checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None)


def end_attempt(how: str | None) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "error":
        raise LookupError("this attempt ends here")


def run_config(engine: AgentsEngine, storage: Path, **checkpoint_settings: Any) -> RunConfig:
    return RunConfig(
        engine=engine,
        storage_path=str(storage),
        checkpoint_config=CheckpointConfig(**checkpoint_settings),
        failure_config=FailureConfig(max_failures=1, start_timeout_s=240),
    )


def trainer(ends: dict[int, str], config: RunConfig) -> TorchTrainer:
    """`ends` are the epochs with which attempts begin that come to a bad end."""
    return TorchTrainer(
        train_with_ddp,
        train_loop_config={"ends": ends},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=config,
        datasets={"train": rows_in_memory()},
    )


def check_end(result: Result, first: int) -> None:
    """Everything is here: metrics of both hosts, the checkpoint's content, and times by the driver's own clock."""
    zero, one = result.rank_metrics[0], result.rank_metrics[1]
    assert (zero["host"], zero["node_rank"], zero["local_rank"], zero["local_world_size"]) == ("h1", 0, 0, 1)
    assert (one["host"], one["node_rank"], one["local_rank"], one["local_world_size"]) == ("h2", 1, 0, 1)
    assert zero["weights"] == one["weights"], "DDP keeps the replicas equal"
    assert zero["rows"] + one["rows"] == ROWS
    assert (result.metrics["epoch"], result.metrics["first"]) == (EPOCHS - 1, first)
    assert abs(result.metrics["timestamp"] - time.time()) < 50
    assert (result.metrics["hostname"], result.metrics["node_ip"]) == ("h1", "10.231.0.1")
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as folder:
        state = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
    assert state["epoch"] == EPOCHS - 1
    assert [float(value) for value in state["model"]["weight"].flatten()] == zero["weights"]


def test_a_run_continues_after_a_kill_and_again_by_restore(hosts_engine: AgentsEngine, tmp_path: Path) -> None:
    failed = trainer({0: "kill", 1: "error"}, run_config(hosts_engine, tmp_path)).fit(raise_on_error=False)
    assert "rank 1" in str(failed.error).splitlines()[0]
    assert "LookupError" in str(failed.error)
    again = TorchTrainer.restore(
        failed.path,
        train_loop_per_worker=train_with_ddp,
        run_config=run_config(hosts_engine, tmp_path),
        datasets={"train": rows_in_memory()},
    ).fit()
    check_end(again, first=2)
    kept = [path.name for path in Path(again.path).glob("checkpoint_*")]
    assert len(kept) == EPOCHS


def test_a_run_continues_from_a_checkpoint_in_memory(hosts_engine: AgentsEngine, tmp_path: Path) -> None:
    result = trainer({0: "kill"}, run_config(hosts_engine, tmp_path, num_to_keep=0)).fit()
    check_end(result, first=1)
    assert list(Path(result.path).glob("checkpoint_*")) == []
