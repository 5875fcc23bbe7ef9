"""Lightning on two workers: a LightningModule as it is, the best checkpoints kept, a run that is trained further.

The images are scikit-learn's: 1,797 handwritten digits of 8 x 8 pixels.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from sklearn.datasets import load_digits

from paceline import data
from paceline.train import Result, RunConfig, ScalingConfig
from paceline.train.lightning import LightningConfigBuilder, LightningPredictor, LightningTrainer


class Digits(pl.LightningModule):
    def __init__(self, width: int = 64, lr: float = 3e-3) -> None:
        super().__init__()
        self.save_hyperparameters()  # so that a checkpoint knows them
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.layers(image)

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(self(batch["image"]), batch["digit"])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
        right = self(batch["image"]).argmax(dim=1) == batch["digit"]
        self.log("val_accuracy", right.float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])


def fit(datasets: dict[str, data.Dataset], epochs: int, start: Result | None = None) -> Result:
    """Train until so many epochs are done; `start` has done some of them already."""
    config = (
        LightningConfigBuilder()
        .module(Digits, width=128)
        .trainer(max_epochs=epochs, logger=False, enable_progress_bar=False, enable_model_summary=False)
        .checkpointing(monitor="val_accuracy", mode="max", save_top_k=2)
        .build()
    )
    return LightningTrainer(
        config,
        datasets=datasets,
        datasets_iter_config={"batch_size": 32, "local_shuffle_buffer_size": 512},
        resume_from_checkpoint=start.checkpoint if start else None,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="digits"),
    ).fit()


def epochs_of(result: Result) -> list[Any]:
    assert result.metrics_dataframe is not None
    return list(result.metrics_dataframe["epoch"])


def main() -> None:
    images, digits = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    rows = data.from_items([{"image": image, "digit": digit} for image, digit in zip(images, digits, strict=True)])
    train_rows, val_rows = rows.train_test_split(0.2, shuffle=True, seed=0)
    datasets = {"train": train_rows, "val": val_rows}

    first = fit(datasets, epochs=3)
    second = fit(datasets, epochs=6, start=first)
    print(f"the second run trained epochs {epochs_of(second)}")
    best, row = max(second.best_checkpoints, key=lambda each: each[1]["val_accuracy"])
    print(f"best accuracy on validation rows: {row['val_accuracy']:.3f} after epoch {row['epoch']}")

    predictor = LightningPredictor.from_checkpoint(best, Digits)
    guesses = predictor.predict(images)["predictions"].argmax(axis=1)
    print(f"{(guesses == digits).sum()} of {len(digits)} digits right")


if __name__ == "__main__":
    main()
