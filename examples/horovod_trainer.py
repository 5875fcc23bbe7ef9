"""Horovod on two workers: handwritten digits with `horovod.torch`, then a second run that trains the model further."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

from paceline import data, train
from paceline.train import Result, ScalingConfig
from paceline.train.horovod import HorovodTrainer
from paceline.train.torch import TorchCheckpoint


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train_func(config: dict[str, Any]) -> None:
    """Runs in every worker. Apart from the lines with `train.` it is a script for horovodrun."""
    import horovod.torch as hvd

    hvd.init()
    model = make_model()
    first_epoch = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        TorchCheckpoint.from_checkpoint(checkpoint).get_model(model)
        first_epoch = checkpoint.get_metadata()["epoch"] + 1
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    rows = train.get_dataset_shard("train")
    for epoch in range(first_epoch, config["epochs"]):
        losses = []
        for batch in rows.iter_torch_batches(batch_size=32, dtypes={"image": torch.float32}):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean_loss = hvd.allreduce(torch.stack(losses).mean()).item()  # over the workers
        saved = TorchCheckpoint.from_state_dict(model.state_dict())
        saved.set_metadata({"epoch": epoch})
        train.report({"epoch": epoch, "loss": mean_loss}, checkpoint=saved)


def fit(rows: data.Dataset, epochs: int, start: Result | None = None) -> Result:
    """Train until the model has seen so many epochs; `start` has some of them already."""
    return HorovodTrainer(
        train_func,
        train_loop_config={"lr": 0.01, "epochs": epochs},
        datasets={"train": rows},
        scaling_config=ScalingConfig(num_workers=2),
        resume_from_checkpoint=start.checkpoint if start else None,
    ).fit()


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    images /= 16
    rows = data.from_items([{"image": image, "label": label} for image, label in zip(images, labels, strict=True)])

    first = fit(rows, epochs=2)
    print(f"epoch {first.metrics['epoch']}: loss {first.metrics['loss']:.2f}")
    second = fit(rows, epochs=4, start=first)
    epochs = [int(epoch) for epoch in second.metrics_dataframe["epoch"]]
    print(f"went on with epochs {epochs}: loss {second.metrics['loss']:.2f}")

    model = second.checkpoint.get_model(make_model())
    found = model(torch.tensor(images, dtype=torch.float32)).argmax(dim=1)
    print(f"{int((found == torch.tensor(labels)).sum())} of {len(labels)} digits right")


if __name__ == "__main__":
    main()
