"""A train function with a sharded model whose steps depend on the step's number alone, and not on who computes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from paceline import train
from paceline.air import CheckpointConfig, Result, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer, load_sharded, prepare_model, save_sharded

GLOBAL_BATCH = 12
"""Divisible by 1, 2 and 3 workers."""


def network(width: int = 16, layers: int = 3) -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.BatchNorm1d(width), nn.Linear(width, 3))


def rows_of(step: int, rank: int, world_size: int, width: int = 16) -> torch.Tensor:
    """This rank's rows of the global batch of a step."""
    rows = torch.randn(GLOBAL_BATCH, width, generator=torch.Generator().manual_seed(step))
    return rows.chunk(world_size)[rank]


def train_network(config: dict[str, Any]) -> None:
    """Saves after each step. `fail_at` is the step at which the first attempt ends."""
    torch.manual_seed(0)
    with torch.device("meta" if config.get("meta") else "cpu"):
        model = network()
    model.get_submodule("3").eval()  # statistics of a batch differ with the number of workers
    model = prepare_model(model, parallel_strategy=config.get("strategy", "fsdp2"))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    start, context = 0, train.get_context()
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        extra = load_sharded(checkpoint, model, optimizer)
        scheduler.load_state_dict(extra["scheduler"])
        start = extra["step"] + 1
    for step in range(start, config["steps"]):
        loss = model(rows_of(step, context.get_world_rank(), context.get_world_size())).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step == config.get("fail_at") and checkpoint is None:
            raise RuntimeError("lost")
        extra = {"step": step, "scheduler": scheduler.state_dict(), "random": torch.get_rng_state()}
        saved = save_sharded(model, optimizer, extra)
        train.report({"loss": loss.item(), "step": step}, checkpoint=saved, reduce={"loss": "mean"})


def fit(loop: Any, num_workers: int = 2, checkpoints: dict[str, Any] | None = None, **arguments: Any) -> Result:
    run = {"verbose": 0, **arguments.pop("run_config", {})}
    return TorchTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(checkpoint_config=CheckpointConfig(**(checkpoints or {})), **run),
        **arguments,
    ).fit()


def losses(result: Result) -> list[float]:
    """Of the rows that have one."""
    return list(result.metrics_dataframe["loss"].dropna())


class WithUnusedLayer(nn.Module):
    """The optimizer never has a state for the second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(16, 3)
        self.unused = nn.Linear(16, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.used(rows)
        return result


def train_with_unused_layer(config: dict[str, Any]) -> None:
    """Saves before each step, the first one included."""
    torch.manual_seed(0)
    model = prepare_model(WithUnusedLayer(), parallel_strategy="fsdp2")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    start, context = 0, train.get_context()
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        start = load_sharded(checkpoint, model, optimizer)["step"]
        train.report({"states": len(optimizer.state)})
    for step in range(start, config["steps"]):
        saved = save_sharded(model, optimizer, {"step": step}) if config["saves"] else None
        train.report({"states": len(optimizer.state)}, checkpoint=saved)
        if step == config.get("fail_at") and checkpoint is None:
            raise RuntimeError("lost")
        loss = model(rows_of(step, context.get_world_rank(), context.get_world_size())).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        train.report({"loss": loss.item(), "states": len(optimizer.state)}, reduce={"loss": "mean"})
