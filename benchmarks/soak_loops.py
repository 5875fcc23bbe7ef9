"""The train functions of the soak."""

from __future__ import annotations

import ctypes
import tempfile
import time
from pathlib import Path
from typing import Any

from paceline import train
from paceline.air import Checkpoint
from paceline.train import collective
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


def plod(config: dict[str, Any]) -> None:
    """Rank 1 is slow for some seconds in the middle, while rank 0 waits for it in a barrier."""
    session = train.get_context()
    for step in range(1, config["steps"] + 1):
        if session.get_world_rank() == 1 and step == config["steps"] // 2:
            BEING_SLOW[config["how"]](time.monotonic() + config["seconds"])
        collective.barrier()
        train.report({"iteration": step}, checkpoint=Checkpoint.from_dict({"step": step}))


def _compute_until(end: float) -> None:
    total = 0
    while time.monotonic() < end:
        total += sum(range(100_000))


def _write_until(end: float) -> None:
    """As to a slow disk: nothing to do between two parts, always at the same line."""
    with tempfile.TemporaryFile(buffering=0) as file:
        while time.monotonic() < end:
            file.write(bytes(1 << 12))
            time.sleep(0.2)


def _hold_the_interpreter_until(end: float) -> None:
    """No other thread of the process runs for two seconds, again and again."""
    while (left := end - time.monotonic()) > 0:
        ctypes.PyDLL(None).usleep(int(1e6 * min(2.0, left)))


BEING_SLOW = {"compute": _compute_until, "write": _write_until, "hold": _hold_the_interpreter_until}


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
