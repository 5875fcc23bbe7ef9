"""A worker is killed in the middle of training; the run goes on from its newest checkpoint."""

import os
import signal
from typing import Any

import torch
from torch import nn

from paceline import train
from paceline.air import FailureConfig, RunConfig, ScalingConfig
from paceline.train.torch import TorchCheckpoint, TorchTrainer, prepare_model


def train_func(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    rows = torch.randn(64, 4)
    model = nn.Linear(4, 1)
    start_epoch = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        TorchCheckpoint.from_checkpoint(checkpoint).get_model(model)
        start_epoch = checkpoint.get_metadata()["epoch"] + 1

    model = prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(start_epoch, config["num_epochs"]):
        if epoch == 3 and start_epoch == 0 and train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = nn.functional.mse_loss(model(rows), rows.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        checkpoint = TorchCheckpoint.from_state_dict(model.module.state_dict())
        checkpoint.set_metadata({"epoch": epoch})
        train.report({"epoch": epoch, "loss": loss.item(), "started_at": start_epoch}, checkpoint=checkpoint)


if __name__ == "__main__":
    result = TorchTrainer(
        train_func,
        train_loop_config={"num_epochs": 6},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1), verbose=1),
    ).fit()
    print(result.metrics_dataframe[["training_iteration", "epoch", "loss", "started_at"]].to_string(index=False))
