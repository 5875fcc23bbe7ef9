"""Metrics over all workers with torchmetrics: compute() combines what every worker has seen."""

from typing import Any

import torch
import torchmetrics

from paceline.air import RunConfig, ScalingConfig, session
from paceline.train.torch import TorchTrainer


def train_func(config: dict[str, Any]) -> None:
    torch.manual_seed(session.get_world_rank())
    accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=5)
    for step in range(config["steps"]):
        predictions = torch.randn(10, 5).softmax(dim=-1)
        target = torch.randint(5, (10,))
        batch_accuracy = torchmetrics.functional.accuracy(predictions, target, task="multiclass", num_classes=5)
        accuracy.update(predictions, target)
        session.report({"step": step, "batch_accuracy": batch_accuracy.item(), "accuracy": accuracy.compute().item()})


if __name__ == "__main__":
    result = TorchTrainer(
        train_func,
        train_loop_config={"steps": 3},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=1),
    ).fit()
    for rank, metrics in sorted(result.rank_metrics.items()):
        print(f"rank {rank}: last batch {metrics['batch_accuracy']:.2f}, all workers {metrics['accuracy']:.4f}")
