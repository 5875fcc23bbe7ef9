"""The smallest training there is, for what does not depend on a framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.air import RunConfig, ScalingConfig, session
from paceline.train import DataParallelTrainer


def count(config: dict[str, Any]) -> None:
    for epoch in range(1, config["epochs"] + 1):
        session.report({"epoch": epoch})


def counter(storage: Path, epochs: int) -> DataParallelTrainer:
    return DataParallelTrainer(
        count,
        train_loop_config={"epochs": epochs},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(storage), verbose=0),
    )
