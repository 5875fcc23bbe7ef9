"""Train a small network on scikit-learn's digits with two workers, then resume it.

This is what `make demo` runs, and the example to start from: one function that trains,
one Trainer that runs it, one Result that holds what came out.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import train
from paceline.train import Checkpoint, CheckpointConfig, Result, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer, prepare_data_loader, prepare_model

FIRST_EPOCHS = 5
MORE_EPOCHS = 10


def load_data() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """1,797 images of 8 x 8 pixels: three quarters to train on, the rest to test with."""
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0)
    training_set = TensorDataset(torch.tensor(train_x, dtype=torch.float32), torch.tensor(train_y))
    return training_set, torch.tensor(test_x, dtype=torch.float32), torch.tensor(test_y)


def train_digits(config: dict[str, Any]) -> None:
    """Runs in every worker: train to `config["epochs"]`, reporting after each epoch."""
    torch.manual_seed(0)
    training_set, test_x, test_y = load_data()
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    first_epoch = 0

    checkpoint = train.get_checkpoint()  # set when a run is resumed or retried
    if checkpoint:
        state = checkpoint.to_dict()
        network.load_state_dict(state["weights"])
        first_epoch = state["epoch"] + 1

    model = prepare_model(network)  # wraps it in DistributedDataParallel
    loader = prepare_data_loader(DataLoader(training_set, batch_size=32, shuffle=True))  # each worker gets its share
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])

    for epoch in range(first_epoch, config["epochs"]):
        total_loss = 0.0
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
        with torch.no_grad():
            accuracy = (network(test_x).argmax(dim=1) == test_y).float().mean().item()
        train.report(
            {"epoch": epoch, "loss": total_loss / len(loader), "accuracy": accuracy},
            checkpoint=Checkpoint.from_dict({"epoch": epoch, "weights": network.state_dict()}),
        )


def fit(epochs: int, resume_from: Checkpoint | None = None) -> Result:
    """Train with two workers, keeping the three best checkpoints."""
    trainer = TorchTrainer(
        train_digits,
        train_loop_config={"epochs": epochs, "lr": 3e-3},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="digits",
            checkpoint_config=CheckpointConfig(num_to_keep=3, checkpoint_score_attribute="accuracy"),
        ),
        resume_from_checkpoint=resume_from,
    )
    return trainer.fit()


def show(title: str, result: Result) -> float:
    """Print a run's metrics and where its files are; return the accuracy it reached."""
    table = result.metrics_dataframe[["training_iteration", "epoch", "loss", "accuracy", "time_total_s"]]
    accuracy = float(table["accuracy"].iloc[-1])
    print(f"\n{title}\n{table.to_string(index=False, float_format='{:.3f}'.format)}")
    print(f"test accuracy   {accuracy:.1%}")
    print(f"files           {result.path}\n")
    return accuracy


def main() -> None:
    first = fit(epochs=FIRST_EPOCHS)
    before = show(f"Two workers, {FIRST_EPOCHS} epochs", first)

    resumed = fit(epochs=FIRST_EPOCHS + MORE_EPOCHS, resume_from=first.checkpoint)
    after = show(f"Resumed from that checkpoint, {MORE_EPOCHS} epochs more", resumed)

    print(f"The resumed run went on at epoch {FIRST_EPOCHS}: accuracy rose from {before:.1%} to {after:.1%}.")


if __name__ == "__main__":
    main()
