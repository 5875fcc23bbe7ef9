"""A module and a train function that know the package by its older name only."""

from __future__ import annotations

import sys
from typing import Any

import pytorch_lightning
import torch

from paceline import train
from paceline.train.lightning import DDPStrategy, LightningEnvironment, ReportCallback, prepare_trainer

QUIET: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}


class Older(pytorch_lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(3, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        loss = torch.nn.functional.mse_loss(self.line(batch["x"])[:, 0], batch["y"])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        self.log("newer_name_is_loaded", float("lightning.pytorch" in sys.modules))
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.2)


def train_func() -> None:
    trainer = pytorch_lightning.Trainer(
        max_epochs=2,
        strategy=DDPStrategy(),
        plugins=[LightningEnvironment()],
        callbacks=[ReportCallback()],
        **QUIET,
    )
    batches = train.get_dataset_shard("train").iter_torch_batches(batch_size=16)
    prepare_trainer(trainer).fit(Older(), batches)
