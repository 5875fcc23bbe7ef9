"""Shard a model over the workers: each of them holds a part of the parameters."""

import torch
from torch import nn

from paceline import train
from paceline.air import RunConfig, ScalingConfig
from paceline.train.torch import TorchCheckpoint, TorchTrainer, prepare_model


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def train_func() -> None:
    torch.manual_seed(0)
    rows = torch.randn(64, 16)
    targets = rows.mean(dim=1, keepdim=True)
    model = make_model()
    whole = count(model)
    model = prepare_model(model, parallel_strategy="fsdp")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(5):
        loss = nn.functional.mse_loss(model(rows), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Collects the full weights, so every worker takes part.
        checkpoint = TorchCheckpoint.from_model(model)
        metrics = {"epoch": epoch, "loss": loss.item(), "parameters": whole, "parameters_here": count(model)}
        train.report(metrics, checkpoint=checkpoint)


if __name__ == "__main__":
    result = TorchTrainer(
        train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=1)
    ).fit()
    metrics = result.metrics or {}
    print(f"each worker held {metrics['parameters_here']} of {metrics['parameters']} parameters")
    assert isinstance(result.checkpoint, TorchCheckpoint)
    model = result.checkpoint.get_model(make_model())
    print(f"the checkpoint has all of them: {count(model)}")
