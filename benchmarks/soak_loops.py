"""The train functions of the soak."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from paceline import train
from paceline.air import Checkpoint
from paceline.train.predictor import Predictor

PAYLOAD = 50_000
BATCH = 8


def saved(checkpoint: Checkpoint | None) -> dict[str, Any]:
    return {"step": 0} if checkpoint is None else checkpoint.to_dict()


def count(config: dict[str, Any]) -> None:
    """Count up to `steps`, with files in a checkpoint at every second step; the files belong together."""
    checkpoint, start = train.get_checkpoint(), 0
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            start = int((Path(directory) / "step.txt").read_text())
            content = (Path(directory) / "weights.bin").read_bytes()
        assert content == bytes([start % 251]) * PAYLOAD, "torn or mixed checkpoint"
    for step in range(start + 1, config["steps"] + 1):
        if step % 2:
            train.report({"iteration": step, "score": step % 7})
            continue
        with tempfile.TemporaryDirectory(dir=config["place"]) as directory:
            (Path(directory) / "step.txt").write_text(str(step))
            (Path(directory) / "weights.bin").write_bytes(bytes([step % 251]) * PAYLOAD)
            report = {"iteration": step, "score": step % 7}
            train.report(report, checkpoint=Checkpoint.from_directory(directory))


def learn(config: dict[str, Any]) -> None:
    """A small network, data parallel."""
    import torch

    import paceline.train.torch as train_torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    state = saved(train.get_checkpoint())
    if state["step"]:
        model.load_state_dict(state["model"])
    model = train_torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.arange(32.0).reshape(8, 4) / 32
    for step in range(state["step"] + 1, config["steps"] + 1):
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights = {name.removeprefix("module."): value for name, value in model.state_dict().items()}
        report = {"iteration": step, "loss": loss.item()}
        train.report(report, checkpoint=Checkpoint.from_dict({"step": step, "model": weights}))


def read(config: dict[str, Any]) -> None:
    """Read a shard once; each report has the ids of a batch."""
    shard = train.get_dataset_shard("train")
    step = saved(train.get_checkpoint())["step"]
    if shard.epoch > 0:
        return
    for batch in shard.iter_batches(batch_size=BATCH):
        step += 1
        report = {"iteration": step, "ids": batch["id"].tolist()}
        train.report(report, checkpoint=Checkpoint.from_dict({"step": step}))


def trial(config: dict[str, Any]) -> None:
    """One trial of a search."""
    step = saved(train.get_checkpoint())["step"]
    for number in range(step + 1, config["steps"] + 1):
        report = {"iteration": number, "score": config["x"] * number}
        train.report(report, checkpoint=Checkpoint.from_dict({"step": number}))


def shift(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"] + 0}


class Doubling(Predictor):
    """A model whose whole state is its checkpoint's files."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, **_: Any) -> Doubling:
        with checkpoint.as_directory() as directory:
            return cls(int((Path(directory) / "step.txt").read_text()))

    def _predict_numpy(self, data: Any, **_: Any) -> Any:
        values = data["x"] if isinstance(data, dict) else data
        return {"y": values * self.factor}
