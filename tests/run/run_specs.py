"""Descriptions of runs whose files are tested."""

from __future__ import annotations

from typing import Any

from paceline.air import RunConfig, ScalingConfig
from paceline.run.spec import RunSpec, TrainFunction, TrialIdentity


def nothing() -> None:
    """Never run here."""


def spec(restore: str | None = None, config: Any = None, **run_config: Any) -> RunSpec:
    return RunSpec(
        trainer_name="Trainer",
        train=TrainFunction(nothing),
        config=config or {},
        scaling=ScalingConfig(num_workers=2),
        run_config=RunConfig(**run_config),
        restore_path=restore,
        identity=TrialIdentity.new(),
    )
