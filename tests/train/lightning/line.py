"""A straight line to fit, and a module that fits it and looks at what it is given."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from paceline import data
from tests.train.preempting import preempt_first_attempt

SLOPES = np.array([1.0, -2.0, 3.0], dtype=np.float32)
ROWS = 128
QUIET: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}


def points() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = np.random.default_rng(0).normal(size=(ROWS, len(SLOPES))).astype(np.float32)
    return x, x @ SLOPES


def dataset() -> data.Dataset:
    x, y = points()
    return data.from_items(
        [{"x": row, "y": value, "number": n} for n, (row, value) in enumerate(zip(x, y, strict=True))]
    )


def loader(batch_size: int = 16) -> DataLoader[Any]:
    x, y = points()
    numbers = torch.arange(ROWS)
    rows = TensorDataset(torch.from_numpy(x), torch.from_numpy(y), numbers)
    return DataLoader(rows, batch_size=batch_size, shuffle=True)


class Line(pl.LightningModule):
    """Logs the loss; at the end of each epoch the numbers of the rows it was given, and whether ranks agree.

    Also how many rows a validation had, and how many files there are that Lightning saved itself.

    `fails_at` is (epoch, batch): there rank 1 is killed, or raises, in the first attempt; at `preempted_at` it gets
    SIGTERM.
    """

    def __init__(
        self,
        lr: float = 0.2,
        fails_at: tuple[int, int] | None = None,
        raises: bool = False,
        preempted_at: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.line = torch.nn.Linear(len(SLOPES), 1)
        self.given: list[int] = []
        self.validated = 0

    def forward(self, x: Any) -> Any:
        return self.line(x)[:, 0]

    def training_step(self, batch: Any, index: int) -> Any:
        if self.hparams["fails_at"] == (self.current_epoch, index) and self.global_rank == 1:
            self._fail_once()
        if self.hparams["preempted_at"] == (self.current_epoch, index):
            preempt_first_attempt()
        x, y, numbers = (batch["x"], batch["y"], batch["number"]) if isinstance(batch, dict) else batch
        self.given += numbers.tolist()
        loss = torch.nn.functional.mse_loss(self(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.validated += len(batch["y"])
        self.log("val_loss", torch.nn.functional.mse_loss(self(batch["x"]), batch["y"]), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.log("val_rows", float(self.validated))
        self.validated = 0

    def on_train_start(self) -> None:
        Path("checkpoints").mkdir(exist_ok=True)
        Path("checkpoints", "mine.txt").touch()

    def on_train_epoch_end(self) -> None:
        self.log("lightnings_files", float(len(list(Path().rglob("*.ckpt")))))
        self.log("rows", float(len(self.given)))
        self.log("sum_of_rows", float(sum(self.given)))
        self.log("disagreement", disagreement(self))
        self.given.clear()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"], momentum=0.1)

    def _fail_once(self) -> None:
        mark = Path("..", "failed")
        if not mark.exists():
            mark.touch()
            if self.hparams["raises"]:
                raise ValueError("rank 1 made a mistake")
            os.kill(os.getpid(), signal.SIGKILL)


def disagreement(module: torch.nn.Module) -> float:
    """How far the ranks' weights are apart."""
    own = torch.cat([each.detach().flatten() for each in module.parameters()])
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    return max(float((other - own).abs().max()) for other in everyone)
