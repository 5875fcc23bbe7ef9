"""Validations on nodes that the training has filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline import train, tune
from paceline.engine.base import Engine
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, ValidationConfig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def ask_twice(config: dict[str, Any]) -> None:
    for _ in range(2):
        train.report({"score": config["factor"]}, checkpoint=Checkpoint.from_dict(dict(config)), validation=True)


def doubled(checkpoint: Checkpoint) -> dict[str, int]:
    return {"score": 2 * checkpoint.to_dict()["factor"]}


def test_validations_get_room_when_trainings_have_taken_all(ray_engine: Engine, tmp_path: Path) -> None:
    """Each trial takes a whole node and then waits for its validations: none of them waits for another forever."""
    cpus = max(1.0, ray_engine.resources()["CPU"] // 2)
    whole = ScalingConfig(num_workers=1, resources_per_worker={"CPU": cpus}, trainer_resources={"CPU": 0})
    trainer = DataParallelTrainer(
        ask_twice, scaling_config=whole, validation_config=ValidationConfig(doubled, scaling_config=whole)
    )
    grid = tune.Tuner(
        trainer,
        param_space={"train_loop_config": {"factor": tune.grid_search([1, 2, 3])}},
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=RunConfig(engine=ray_engine, storage_path=str(tmp_path), verbose=0),
    ).fit()
    for result in grid:
        assert not result.warnings
        assert result.metrics_dataframe["validation/score"].tolist() == [2 * result.metrics["score"]] * 2
