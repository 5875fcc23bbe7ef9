"""Whole runs on two nodes: DDP that loses a worker and continues, and a search."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from paceline import train, tune
from paceline.engine.base import Engine
from paceline.testing.invariants import check_run
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

pytestmark = [pytest.mark.cluster, pytest.mark.smoke, pytest.mark.timeout(240)]
STEPS = 4


def train_with_ddp(config: dict[str, Any]) -> None:
    """Rank 1 is killed in the first attempt, before its third step."""
    import torch

    from paceline.train.torch import prepare_model

    checkpoint = train.get_checkpoint()
    begun = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    context = train.get_context()
    torch.manual_seed(context.get_world_rank())
    model = prepare_model(torch.nn.Linear(2, 1))
    if checkpoint is not None:
        model.module.load_state_dict(checkpoint.to_dict()["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(begun + 1, STEPS + 1):
        if (context.get_world_rank(), begun, step) == (1, 0, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.randn(8, 2)).pow(2).mean().backward()
        optimizer.step()
        weights = [float(value) for value in model.module.weight.detach().flatten()]
        metrics = {"iteration": step, "begun": begun, "weights": weights, "node_rank": context.get_node_rank()}
        train.report(metrics, checkpoint=Checkpoint.from_dict({"step": step, "model": model.module.state_dict()}))


def test_ddp_over_two_nodes_loses_a_worker_and_continues(ray_engine: Engine, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from paceline.train.torch import TorchTrainer

    result = TorchTrainer(
        train_with_ddp,
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(
            engine=ray_engine,
            storage_path=str(tmp_path),
            failure_config=FailureConfig(max_failures=1, start_timeout_s=120),
        ),
    ).fit()
    check_run(result.path, result=result, iterations=STEPS, attempts=2)
    assert result.metrics["begun"] == 2
    assert [result.rank_metrics[rank]["node_rank"] for rank in (0, 1)] == [0, 1]
    assert result.rank_metrics[0]["weights"] == result.rank_metrics[1]["weights"], "DDP keeps the replicas equal"
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == STEPS


def double(config: dict[str, Any]) -> None:
    train.report({"score": 2 * config["factor"]}, checkpoint=Checkpoint.from_dict(dict(config)))


def test_a_search_runs_its_trials_on_the_cluster(ray_engine: Engine, tmp_path: Path) -> None:
    results = tune.Tuner(
        DataParallelTrainer(double, scaling_config=ScalingConfig(num_workers=1)),
        param_space={"train_loop_config": {"factor": tune.grid_search([1, 2, 3, 4])}},
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=RunConfig(engine=ray_engine, storage_path=str(tmp_path)),
    ).fit()
    assert sorted(result.metrics["score"] for result in results) == [2, 4, 6, 8]
    best = results.get_best_result()
    assert best.checkpoint is not None
    assert best.checkpoint.to_dict()["factor"] == 4
