"""A driver that trains a sharded model in whose every number the step can be read: ``python -m ... config.json``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline import train
from paceline.air import CheckpointConfig, RunConfig, ScalingConfig
from paceline.testing.processes import Marks
from paceline.train.torch import TorchTrainer, load_sharded, prepare_model, save_sharded


def network() -> nn.Module:
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))


def fill(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Let every number of the model and the optimizer be the step, so that a mixture of two steps is seen."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(step)
            optimizer.state[parameter]["exp_avg"].fill_(step)


def differing(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> list[str]:
    found = []
    for name, parameter in model.named_parameters():
        for value in (parameter, optimizer.state[parameter]["exp_avg"]):
            local = value.to_local() if hasattr(value, "to_local") else value
            if not torch.equal(local, torch.full_like(local, step)):
                found.append(name)
    return found


def begin() -> tuple[nn.Module, torch.optim.Optimizer, int]:
    """The model, and the step of the checkpoint that it continues from; fails if that was loaded wrongly."""
    model = prepare_model(network(), parallel_strategy="fsdp2")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    checkpoint = train.get_checkpoint()
    if checkpoint is None:
        return model, optimizer, 0
    step = load_sharded(checkpoint, model, optimizer)["step"]
    wrong = differing(model, optimizer, step)
    if wrong:
        raise AssertionError(f"loaded step {step} wrongly: {wrong}")
    return model, optimizer, step


def read_step(place: Path) -> int:
    """The step of a checkpoint on disk; fails if it holds anything of another step."""
    model = network()
    step: int = load_sharded(str(place), model)["step"]
    assert all(torch.equal(value, torch.full_like(value, step)) for value in model.state_dict().values())
    return step


@dataclass(frozen=True)
class Program:
    """What the driver trains."""

    storage: str
    marks: str
    steps: int
    checkpoints: dict[str, Any]

    def save(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path

    def trainer(self, restore: Path | None = None) -> TorchTrainer:
        config = {"marks": self.marks, "steps": self.steps}
        if restore is not None:
            return TorchTrainer.restore(str(restore), train_loop_per_worker=count_up, train_loop_config=config)
        return TorchTrainer(
            count_up,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                storage_path=self.storage, verbose=0, checkpoint_config=CheckpointConfig(**self.checkpoints)
            ),
        )


def count_up(config: dict[str, Any]) -> None:
    marks, rank = Marks(config["marks"]), train.get_context().get_world_rank()
    model, optimizer, start = begin()
    marks.say("started", rank=rank, after=start)
    for step in range(start + 1, config["steps"] + 1):
        fill(model, optimizer, step)
        train.report({"step": step}, checkpoint=save_sharded(model, optimizer, {"step": step}))
        marks.say("reported", rank=rank, step=step)


if __name__ == "__main__":
    Program(**json.loads(Path(sys.argv[1]).read_text())).trainer().fit()
