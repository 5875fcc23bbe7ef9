from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.air import Checkpoint, FailureConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import RestoreError
from paceline.train import DataParallelTrainer
from paceline.view.frames import run_frame


def steps(config: dict[str, Any]) -> None:
    start = session.get_checkpoint().to_dict()["step"] if session.get_checkpoint() else 0
    for step in range(start + 1, 5):
        saved = Checkpoint.from_dict({"step": step}) if step == 2 else None
        session.report({"loss": {"train": 1 / step}, **({"late": 1} if step > 2 else {})}, checkpoint=saved)
        if step == 3 and not Path(config["mark"]).exists():
            Path(config["mark"]).touch()
            raise ValueError("once")


def test_rows_that_survive_with_nested_metrics(tmp_path: Path) -> None:
    run = DataParallelTrainer(
        steps,
        train_loop_config={"mark": str(tmp_path / "mark")},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            storage_path=str(tmp_path), verbose=0, engine="inline", failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
    frame = run_frame(run.path)
    assert list(frame.columns) == ["training_iteration", "time_total_s", "timestamp", "loss/train", "late"]
    assert list(frame["training_iteration"]) == [1, 2, 3, 4]
    assert list(frame["late"].isna()) == [True, True, False, False]
    ranks = run_frame(run.path, ranks=True)
    assert list(ranks["rank"]) == [0, 0, 0, 0]


def test_a_place_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="journal"):
        run_frame(str(tmp_path))
