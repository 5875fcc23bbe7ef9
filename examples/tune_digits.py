"""A search with a model and early stopping: Optuna proposes networks for the digits, ASHA ends the poor ones early.

Each trial trains a small network of scikit-learn epoch by epoch. The images are given to all trials at once; they
are not copied for each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from paceline import tune
from paceline.air import RunConfig, session
from paceline.tune import TuneConfig, Tuner
from paceline.tune.schedulers import ASHAScheduler
from paceline.tune.search.optuna import OptunaSearch

Parts = dict[str, np.ndarray]
MOST_EPOCHS = 16
TRIALS = 16


def train_network(config: dict[str, Any], parts: Parts) -> None:
    model = MLPClassifier(
        hidden_layer_sizes=(config["width"],) * config["depth"],
        learning_rate_init=config["lr"],
        alpha=config["alpha"],
        random_state=0,
    )
    for _ in range(MOST_EPOCHS):
        model.partial_fit(parts["train_x"], parts["train_y"], classes=range(10))
        session.report({"accuracy": model.score(parts["valid_x"], parts["valid_y"])})


def load_parts() -> Parts:
    images, labels = load_digits(return_X_y=True)
    train_x, valid_x, train_y, valid_y = train_test_split(images / 16, labels, test_size=0.3, random_state=0)
    return {"train_x": train_x, "train_y": train_y, "valid_x": valid_x, "valid_y": valid_y}


def main() -> None:
    tuner = Tuner(
        tune.with_parameters(train_network, parts=load_parts()),
        param_space={
            "width": tune.qrandint(8, 64, 8),
            "depth": tune.randint(1, 3),
            "lr": tune.loguniform(1e-4, 1e-1),
            "alpha": tune.loguniform(1e-6, 1e-1),
        },
        tune_config=TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=TRIALS,
            search_alg=OptunaSearch(seed=0),
            scheduler=ASHAScheduler(max_t=MOST_EPOCHS, grace_period=2, reduction_factor=2),
        ),
        run_config=RunConfig(name="tune_digits"),
    )
    results = tuner.fit()

    epochs = sum(result.metrics["training_iteration"] for result in results)
    print(f"{len(results)} trials took {epochs} of {TRIALS * MOST_EPOCHS} epochs")
    table = results.get_dataframe().sort_values("accuracy", ascending=False)
    print(table[["config/width", "config/depth", "config/lr", "training_iteration", "accuracy"]].head(5).to_string())
    plot = results.plot_param_importances(Path(results.experiment_path) / "importances.png")
    print(f"which parameters mattered: {plot}")


if __name__ == "__main__":
    main()
