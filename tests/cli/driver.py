"""A driver that trains until a file appears: `python driver.py <storage> <name> <folder for its signs> [search]`.

It makes `ready` in that folder after three reports with checkpoints, and ends when it finds `release` there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from paceline import train, tune
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, RunConfig, ScalingConfig
from paceline.tune import TuneConfig, Tuner


def steps(config: dict[str, Any]) -> None:
    signs, rank = Path(config["signs"]), train.get_context().get_world_rank()
    for step in range(3):
        print(f"step {step} of rank {rank}", flush=True)
        train.report({"loss": 1 / (step + 1)}, checkpoint=Checkpoint.from_dict({"step": step}))
    (signs / "ready").touch()
    while True:
        time.sleep(0.05)
        train.report({"loss": 0.3})


def trial(config: dict[str, Any]) -> None:
    signs = Path(config["signs"])
    for step in range(100_000):
        (signs / f"trial-{config['x']}").touch()
        train.report({"loss": config["x"] + step})
        time.sleep(0.05)
        if (signs / "release").exists():
            return


def search(storage: str, name: str, signs: str) -> None:
    Tuner(
        trial,
        param_space={"x": tune.grid_search([1, 2]), "signs": signs},
        tune_config=TuneConfig(metric="loss", mode="min", max_concurrent_trials=2),
        run_config=RunConfig(name=name, storage_path=storage, verbose=0),
    ).fit()


def run(storage: str, name: str, signs: str) -> None:
    DataParallelTrainer(
        steps,
        train_loop_config={"signs": signs},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name=name,
            storage_path=storage,
            verbose=0,
            stop=lambda trial_id, row: (Path(signs) / "release").exists(),
            checkpoint_config=CheckpointConfig(checkpoint_score_attribute="loss", checkpoint_score_order="min"),
        ),
    ).fit()


if __name__ == "__main__":
    (search if sys.argv[4:] == ["search"] else run)(*sys.argv[1:4])
