"""Population-based training: the learning rate of a network changes while it trains.

Four trials train side by side. Every three epochs the worst one goes on from the weights of the best, with a learning
rate near the best one's. The end shows how the best trial came to its weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits

from paceline import tune
from paceline.air import Checkpoint, RunConfig, session
from paceline.tune import TuneConfig, Tuner
from paceline.tune.schedulers import PopulationBasedTraining

EPOCHS = 15


def train_digits(config: dict[str, Any]) -> None:
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16
    train_x, valid_x, train_y, valid_y = images[:1200], images[1200:], labels[:1200], labels[1200:]
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    first = 0
    checkpoint = session.get_checkpoint()  # this trial's own, or the one of the trial that it takes over from
    if checkpoint is not None:
        state = checkpoint.to_dict()
        first = state["epoch"] + 1
        model.load_state_dict(state["weights"])
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for epoch in range(first, EPOCHS):
        for x, y in zip(train_x.split(50), train_y.split(50), strict=True):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(valid_x).argmax(1) == valid_y).float().mean().item()
        state = {"epoch": epoch, "weights": model.state_dict()}
        session.report({"accuracy": accuracy}, checkpoint=Checkpoint.from_dict(state))


def main() -> None:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=3,
        hyperparam_mutations={"lr": tune.loguniform(1e-3, 1.0)},
        synch=True,  # all are compared after the same number of epochs
    )
    results = Tuner(
        tune.with_resources(train_digits, {"CPU": 0.5}),
        param_space={"lr": tune.grid_search([0.001, 0.01, 0.05, 0.5])},
        tune_config=TuneConfig(metric="accuracy", mode="max", scheduler=scheduler),
        run_config=RunConfig(name="tune_population"),
    ).fit()

    for result in results:
        rates = result.metrics_dataframe["config/lr"].iloc[::3]
        print(f"accuracy {result.metrics['accuracy']:.3f}, learning rates {[round(rate, 4) for rate in rates]}")
    takeovers = (Path(results.experiment_path) / "pbt_global.txt").read_text(encoding="utf-8").splitlines()
    for trial, donor, iteration, _, _, new in map(json.loads, takeovers):
        print(f"after epoch {iteration}, {trial} took over from {donor} and went on with lr={new['lr']:.4f}")


if __name__ == "__main__":
    main()
