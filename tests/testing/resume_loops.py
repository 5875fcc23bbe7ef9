"""One training loop, and ways to forget something in it."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline import data, train
from paceline.air import Checkpoint, RunConfig, ScalingConfig
from paceline.train import DataParallelTrainer
from paceline.train.torch import TorchTrainer, prepare_data_loader, prepare_model

EPOCHS = 4
BATCHES = 3


def torch_loop(config: dict[str, Any]) -> None:
    """A network with momentum, a schedule and dropout. `forget` names what the resumed loop does not restore."""
    import torch

    forget = config["forget"]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.25), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    start = 0
    checkpoint = None if forget == "checkpoint" else train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            saved = torch.load(Path(directory) / "state.pt", weights_only=True)
        start = saved["epoch"]
        if forget != "model":
            model.load_state_dict(saved["model"])
        if forget != "optimizer":
            optimizer.load_state_dict(saved["optimizer"])
        if forget != "scheduler":
            scheduler.load_state_dict(saved["scheduler"])
        if forget != "random state":
            torch.set_rng_state(saved["random"])
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(BATCHES, 16, 4, generator=generator)
    for epoch in range(start + 1, EPOCHS + 1):
        for batch in inputs:
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        with tempfile.TemporaryDirectory() as directory:
            state = {
                "epoch": epoch,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "random": torch.get_rng_state(),
            }
            torch.save(state, Path(directory) / "state.pt")
            train.report({"epoch": epoch, "loss": loss.item()}, checkpoint=Checkpoint.from_directory(directory))


def torch_trainer(forget: str, storage: Path) -> TorchTrainer:
    return TorchTrainer(
        torch_loop,
        train_loop_config={"forget": forget},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(storage), verbose=0),
    )


def loader_loop(config: dict[str, Any]) -> None:
    """Two workers with a prepared loader that shuffles. `forget` names what the resumed loop gets wrong."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    forget = config["forget"]
    torch.manual_seed(0)
    rows = torch.randn(32, 4)
    loader = prepare_data_loader(DataLoader(TensorDataset(rows), batch_size=4, shuffle=True))
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    start = 0
    if (checkpoint := train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as directory:
            saved = torch.load(Path(directory) / "state.pt", weights_only=True)
        start = saved["epoch"]
        model.load_state_dict(saved["model"])
        if forget != "optimizer":
            optimizer.load_state_dict(saved["optimizer"])
        if forget == "loader epoch":
            loader.sampler.set_epoch(0)  # type: ignore[attr-defined]
    for epoch in range(start + 1, EPOCHS + 1):
        for (batch,) in loader:
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as directory:
            state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, Path(directory) / "state.pt")
            train.report({"epoch": epoch, "loss": loss.item()}, checkpoint=Checkpoint.from_directory(directory))


def loader_trainer(forget: str, storage: Path, **settings: Any) -> TorchTrainer:
    return TorchTrainer(
        loader_loop,
        train_loop_config={"forget": forget},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(storage), verbose=0, **settings),
    )


def shard_loop(config: dict[str, Any]) -> None:
    """Adds up rows, with a checkpoint after every batch."""
    shard = train.get_dataset_shard("train")
    checkpoint = train.get_checkpoint()
    saved = {"total": 0, "batches": 0} if checkpoint is None else checkpoint.to_dict()
    total, batches = saved["total"], saved["batches"]
    for number, batch in enumerate(shard.iter_batches(batch_size=5)):
        if config["forget"] == "shard position" and number < saved["batches"]:
            continue  # The shard has left these rows out already.
        total, batches = total * 3 + int(batch["id"].sum()), batches + 1
        state = Checkpoint.from_dict({"total": total, "batches": batches})
        # Only rank 0's checkpoint is kept: other ranks do not get their total back.
        is_first = train.get_context().get_world_rank() == 0
        train.report({"total": total if is_first else batches}, checkpoint=state)


def shard_trainer(forget: str, storage: Path, workers: int = 1) -> DataParallelTrainer:
    return DataParallelTrainer(
        shard_loop,
        train_loop_config={"forget": forget},
        datasets={"train": data.range(40 * workers)},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path=str(storage), verbose=0),
    )


def plain_loop(config: dict[str, Any]) -> None:
    """No framework: a sum of random numbers. `noise` makes each run another one; `hidden` is not saved."""
    import os

    checkpoint = train.get_checkpoint()
    saved = {"step": 0, "total": 0.0, "random": None} if checkpoint is None else checkpoint.to_dict()
    total, hidden = saved["total"], 1.0
    if saved["random"] is not None:
        random.setstate(saved["random"])
    for step in range(saved["step"] + 1, config["steps"] + 1):
        hidden *= 1.5
        total += random.random() + (hidden if config.get("hidden") else 0.0)
        noise = {"noise": os.urandom(8).hex()} if config.get("noise") else {}
        state = {"step": step, "total": total, "random": random.getstate()}
        is_saved = step % config.get("every", 1) == 0
        train.report({"total": total, **noise}, checkpoint=Checkpoint.from_dict(state) if is_saved else None)


def plain_trainer(storage: Path, **config: Any) -> DataParallelTrainer:
    return DataParallelTrainer(
        plain_loop,
        train_loop_config={"steps": 5, **config},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(storage), verbose=0),
    )


def dict_loop(config: dict[str, Any]) -> None:
    """Its state is a dict that comes from a checkpoint and goes into the next one, and into the rows if `spread`."""
    checkpoint = train.get_checkpoint()
    state = checkpoint.to_dict() if checkpoint else {"step": 0, "total": 0}
    while state["step"] < config["steps"]:
        state["step"] += 1
        state["total"] += state["step"]
        row = {**state} if config.get("spread") else {"total": state["total"]}
        train.report(row, checkpoint=Checkpoint.from_dict(state))


def trainer_of(loop: Callable[[dict[str, Any]], None], storage: Path, **run: Any) -> DataParallelTrainer:
    return DataParallelTrainer(
        loop,
        train_loop_config=run.pop("config", {}),
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(storage), verbose=0, **run),
    )


def importing_loop(config: dict[str, Any]) -> None:
    """Imports its framework itself, and begins with a random weight. Only for processes that have not imported it."""
    import sys

    module = config["module"]
    assert module not in sys.modules
    checkpoint = train.get_checkpoint()
    state = {"step": 0} if checkpoint is None else checkpoint.to_dict()
    generator: Any = None
    if module == "torch":
        import torch

        weight = float(torch.rand(1))
    else:
        import numpy as np

        weight, generator = float(np.random.rand()), np.random.default_rng(7)
    weight = state.get("weight", weight)
    for step in range(state["step"] + 1, 5):
        row = {"weight": weight}
        if config.get("draws"):
            row["drawn"] = float(generator.random())
        train.report(row, checkpoint=Checkpoint.from_dict({"step": step, "weight": weight}))
