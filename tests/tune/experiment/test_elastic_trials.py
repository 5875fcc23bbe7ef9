"""Elastic trainers in a search: a trial starts with the workers that fit, and keeps their number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.air import RunConfig, ScalingConfig, session
from paceline.engine.local.engine import LocalEngine
from paceline.run.records import RunRecords
from paceline.storage.run_dir import RunDir
from paceline.testing.processes import Marks
from paceline.train import DataParallelTrainer
from paceline.tune import TuneConfig, Tuner


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    engine = LocalEngine(num_cpus=3)
    yield engine
    engine.close()


def meet_the_others(config: dict[str, Any]) -> None:
    """Both trials run at the same time; rank 0 of each waits for the other."""
    if session.get_world_rank() == 0:
        marks = Marks(config["marks"])
        marks.say("started", trial=session.get_trial_id())
        marks.wait("started", 2)
    session.report({"size": session.get_world_size(), "config": None})


def test_each_trial_starts_with_what_fits(engine: LocalEngine, tmp_path: Path) -> None:
    trainer = DataParallelTrainer(
        meet_the_others,
        train_loop_config={"marks": str(tmp_path / "marks")},
        scaling_config=ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=0.01),
    )
    tuner = Tuner(trainer, tune_config=TuneConfig(num_samples=2), run_config=RunConfig(engine=engine, verbose=0))
    results = list(tuner.fit())
    assert [result.metrics["size"] for result in results] == [2, 1]
    for result, size in zip(results, (2, 1), strict=True):
        assert result.log_dir is not None
        records = RunRecords.read(RunDir(result.log_dir))
        assert (records.attempts, records.settings["scaling_config"]["num_workers"]) == (1, size)


def test_a_trial_that_has_no_room_for_its_least_waits(engine: LocalEngine, tmp_path: Path) -> None:
    trainer = DataParallelTrainer(
        lambda: session.report({"size": session.get_world_size()}), scaling_config=ScalingConfig(num_workers=(2, 9))
    )
    tuner = Tuner(trainer, tune_config=TuneConfig(num_samples=2), run_config=RunConfig(engine=engine, verbose=0))
    assert [result.metrics["size"] for result in tuner.fit()] == [3, 3]
