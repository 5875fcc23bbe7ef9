"""The contract's training as a LightningModule; what imports this imports Lightning."""

from __future__ import annotations

from typing import Any

import lightning
import torch

from paceline.testing.backend_lesson import Lesson
from tests.contracts.framework_trainings import LEARNING_RATE, ROWS, torch_line, torch_rows


class Line(lightning.LightningModule):
    def __init__(self, lesson: Lesson) -> None:
        super().__init__()
        self.lesson = lesson
        self.linear = torch_line()

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*torch_rows()), batch_size=ROWS)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        features, labels = batch
        loss = torch.nn.functional.mse_loss(self.linear(features), labels)
        self.log("loss", loss)
        return loss

    def on_train_start(self) -> None:
        self.lesson.begin(self.current_epoch)

    def on_train_epoch_start(self) -> None:
        self.lesson.before_epoch(self.current_epoch + 1)

    def on_train_end(self) -> None:
        self.lesson.end(torch.cat([each.detach().flatten() for each in self.linear.parameters()]).tolist())
