"""A driver that trains until a file appears: `python driver.py <storage> <name> <folder for its signs> [workers]`.

It makes `ready` in that folder after three reports with checkpoints, and ends when it finds `release` there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from paceline import train
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, RunConfig, ScalingConfig


def steps(config: dict[str, Any]) -> None:
    signs, rank = Path(config["signs"]), train.get_context().get_world_rank()
    for step in range(3):
        print(f"step {step} of rank {rank}", flush=True)
        train.report({"loss": 1 / (step + 1)}, checkpoint=Checkpoint.from_dict({"step": step}))
    (signs / "ready").touch()
    while True:
        time.sleep(0.05)
        train.report({"loss": 0.3})


if __name__ == "__main__":
    storage, name, signs = sys.argv[1:4]
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
